package block

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newTestBuffers(t testing.TB, limit int) *Buffers {
	t.Helper()
	b, err := NewBuffers(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func reserve(t testing.TB, b *Buffers, op Op, n int) *Request {
	t.Helper()
	r := &Request{Op: op, Length: int64(n)}
	if !b.Reserve(r) {
		t.Fatalf("Reserve of %d bytes is refused", n)
	}
	return r
}

func TestReservedMemoryIsExclusive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const limit = 4 << 20
		b := newTestBuffers(t, limit)
		var held []*Request
		stamp := byte(0)
		rt.Repeat(map[string]func(*rapid.T){
			"reserve": func(rt *rapid.T) {
				op := rapid.SampledFrom([]Op{Read, Write}).Draw(rt, "op")
				n := rapid.IntRange(1, limit).Draw(rt, "n")
				r := &Request{Op: op, Length: int64(n)}
				if !b.Reserve(r) {
					if len(held) == 0 {
						rt.Fatalf("%d bytes refused with nothing reserved", n)
					}
					if r.Data != nil || r.Memory != 0 {
						rt.Fatalf("a refusal left Data %d bytes, Memory %d", len(r.Data), r.Memory)
					}
					return
				}
				if len(r.Data) != n || cap(r.Data) != n || r.Memory == 0 {
					rt.Fatalf("Data is %d of %d bytes, want %d", len(r.Data), cap(r.Data), n)
				}
				stamp++
				r.User = uint64(stamp)
				for i := range r.Data {
					r.Data[i] = stamp
				}
				held = append(held, r)
			},
			"release": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.Skip("nothing is reserved")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				r := held[i]
				held = append(held[:i], held[i+1:]...)
				if want := bytes.Repeat([]byte{byte(r.User)}, len(r.Data)); !bytes.Equal(r.Data, want) {
					rt.Fatalf("memory of request %d was changed by another", r.User)
				}
				b.Release(r)
				if r.Data != nil || r.Memory != 0 {
					rt.Fatal("Release leaves memory with the request")
				}
				b.Release(r)
			},
			"tidy": func(*rapid.T) {
				b.now = func() time.Time { return b.swept.Add(2 * idleAfter) }
				b.Tidy()
			},
			"shed": func(*rapid.T) { b.ReleaseIdle() },
		})
		for _, r := range held {
			b.Release(r)
		}
		b.Release(reserve(t, b, Read, limit))
	})
}

func TestRequestsWithoutPayloadNeedNoMemory(t *testing.T) {
	b := newTestBuffers(t, granule)
	for _, op := range []Op{Flush, Trim, WriteZeroes} {
		r := &Request{Op: op, Length: 1 << 40}
		if !b.Reserve(r) || r.Data != nil || r.Memory != 0 {
			t.Errorf("op %d: Reserve provides %d bytes", op, len(r.Data))
		}
		b.Release(r)
	}
}

func TestIdleMemoryGoesBack(t *testing.T) {
	b := newTestBuffers(t, 8*granule)
	clock := time.Now()
	b.now = func() time.Time { return clock }
	later := func() time.Duration { clock = clock.Add(idleAfter); return b.Tidy() }

	if d := b.Tidy(); d >= 0 {
		t.Errorf("untouched memory is to be tidied in %v", d)
	}
	small, big := reserve(t, b, Write, 100), reserve(t, b, Write, 2*granule)
	small.Data[0], big.Data[0], big.Data[2*granule-1] = 1, 2, 3
	again := big.Data
	b.Tidy()
	b.Release(big)

	// Used since the last sweep: it stays warm. Freed for a whole period: it
	// goes.
	big = reserve(t, b, Write, 2*granule)
	b.Release(big)
	if d := later(); d != idleAfter || again[0] != 2 {
		t.Fatalf("memory used a moment ago: next look in %v, content %d; want it kept", d, again[0])
	}
	if d := b.Tidy(); d != idleAfter || again[0] != 2 {
		t.Fatalf("too early: next look in %v, content %d", d, again[0])
	}
	if d := later(); d != idleAfter || again[0] != 0 || again[2*granule-1] != 0 {
		t.Fatalf("idle memory: next look in %v, content %d; want it given back", d, again[0])
	}
	if small.Data[0] != 1 {
		t.Fatal("memory in use was given back")
	}
	b.Release(small)
	later()
	if d := later(); d >= 0 {
		t.Errorf("all memory went back and is looked at again in %v", d)
	}
}

// An idle queue has no mapping, and gets one again with its next request.
func TestIdleBuffersHaveNoMapping(t *testing.T) {
	b := newTestBuffers(t, PayloadLimit)
	clock := time.Now()
	b.now = func() time.Time { return clock }
	if b.mapping != nil {
		t.Error("there is a mapping before the first request")
	}
	if b.Reserve(&Request{Op: Read, Length: PayloadLimit + 1}) || b.mapping != nil {
		t.Error("a request that is too long is granted, or memory is mapped for it")
	}
	for round := range 3 {
		r := reserve(t, b, Write, PayloadLimit)
		if r.Data[0] != 0 || r.Data[PayloadLimit-1] != 0 {
			t.Fatalf("round %d: memory is not fresh", round)
		}
		r.Data[0], r.Data[PayloadLimit-1] = 1, 1
		b.Tidy()
		clock = clock.Add(idleAfter)
		if b.Tidy() < 0 || b.mapping == nil {
			t.Fatal("memory in use was given back")
		}
		b.Release(r)
		clock = clock.Add(idleAfter)
		if d := b.Tidy(); d >= 0 || b.mapping != nil || b.blocks != nil {
			t.Fatalf("round %d: next look in %v, %d bytes are mapped; want none", round, d, len(b.mapping))
		}
	}
}

// ReleaseIdle waits for no time, but for the last request.
func TestShedBuffers(t *testing.T) {
	b := newTestBuffers(t, PayloadLimit)
	b.ReleaseIdle()
	r := reserve(t, b, Write, 4096)
	r.Data[0] = 7
	b.ReleaseIdle()
	if r.Data[0] != 7 {
		t.Error("memory in use was given back")
	}
	b.Release(r)
	b.ReleaseIdle()
	if d := b.Tidy(); d >= 0 || b.mapping != nil {
		t.Errorf("next look in %v, %d bytes are mapped; want none", d, len(b.mapping))
	}
	b.Release(reserve(t, b, Read, PayloadLimit))
}

func TestReserveAllocatesNothing(t *testing.T) {
	b := newTestBuffers(t, PayloadLimit)
	r := &Request{Op: Write, Length: 65536}
	n := testing.AllocsPerRun(1000, func() {
		if !b.Reserve(r) {
			t.Fatal("refused")
		}
		b.Release(r)
		b.Tidy()
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestSecondReservationPanics(t *testing.T) {
	b := newTestBuffers(t, granule)
	r := reserve(t, b, Read, 1)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	b.Reserve(r)
}

func TestUnmappableBuffers(t *testing.T) {
	for _, limit := range []int{-1, 0, 1 << 60} {
		if _, err := NewBuffers(limit); err == nil {
			t.Errorf("NewBuffers(%d) succeeds", limit)
		}
	}
}
