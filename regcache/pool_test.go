package regcache

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

// newPool returns a pool of an oracle's NIC, closed at the end of the test.
func newPool(t testing.TB, size int) (*Pool, *oracle) {
	t.Helper()
	o := newOracle()
	nic := must(via.OpenNic(o, ""))(t)
	tag := must(nic.CreatePtag())(t)
	p := must(NewPool(nic, size, via.MemAttributes{Ptag: tag, EnableRdmaWrite: true}))(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil && err != ErrClosed {
			t.Errorf("Close: %v", err)
		}
		if live, registered, deregistered := o.count(); live != 0 || registered != deregistered {
			t.Errorf("%d regions are live after Close", live)
		}
		if err := nic.Close(); err != nil {
			t.Errorf("close nic: %v", err)
		}
	})
	return p, o
}

func (p *Pool) mustGet(t testing.TB, n int) Buffer {
	t.Helper()
	s, ok := p.Get(n)
	if !ok {
		t.Fatalf("Get(%d) refuses: %+v", n, p.Stats())
	}
	return s
}

func TestPoolIsOneRegion(t *testing.T) {
	for _, c := range []struct{ size, want int }{{1, 4096}, {4096, 4096}, {5000, 8192}, {3 << 20, 4 << 20}} {
		p, o := newPool(t, c.size)
		if s := p.Stats(); s.Size != c.want || len(p.Memory().Bytes()) != c.want {
			t.Errorf("pool of %d bytes has %d, want %d", c.size, s.Size, c.want)
		}
		s := p.mustGet(t, c.want)
		if s.Addr != p.Memory().Addr() || s.Handle != p.Memory().Handle() || !p.Memory().RemoteWrite() {
			t.Errorf("buffer at %#x of region %#x", s.Addr, p.Memory().Addr())
		}
		if _, ok := p.Get(1); ok {
			t.Error("a full pool returns a buffer")
		}
		p.Put(s)
		if _, registered, _ := o.count(); registered != 1 {
			t.Errorf("%d registrations", registered)
		}
	}
}

func TestPoolCannotBeMade(t *testing.T) {
	o := newOracle()
	nic := must(via.OpenNic(o, ""))(t)
	tag := must(nic.CreatePtag())(t)
	for _, size := range []int{-1, 0, 1 << 62} {
		if _, err := NewPool(nic, size, via.MemAttributes{Ptag: tag}); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("pool of %d bytes: %v", size, err)
		}
	}
	if _, err := NewPool(nic, 4096, via.MemAttributes{}); !errors.Is(err, via.ErrInvalidPtag) {
		t.Errorf("pool without a tag: %v", err)
	}
	o.failRegister(1, via.ErrResource)
	if _, err := NewPool(nic, 4096, via.MemAttributes{Ptag: tag}); !errors.Is(err, via.ErrResource) {
		t.Errorf("pool that cannot be registered: %v", err)
	}
	if err := nic.Close(); err != nil {
		t.Errorf("something is left: %v", err)
	}
}

func TestPoolAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 1 << rapid.IntRange(12, 24).Draw(t, "log size")
		o := newOracle()
		nic := must(via.OpenNic(o, ""))(t)
		tag := must(nic.CreatePtag())(t)
		p := must(NewPool(nic, size, via.MemAttributes{Ptag: tag}))(t)
		var out []Buffer
		inUse := 0
		block := func(n int) int {
			b := minBlock
			for b < n {
				b *= 2
			}
			return b
		}
		// fits reports whether an aligned block is free.
		fits := func(n int) bool {
			b := block(n)
			for off := 0; off+b <= size; off += b {
				free := true
				for _, s := range out {
					o := int(s.Addr - p.Memory().Addr())
					free = free && (off+b <= o || o+block(len(s.Data)) <= off)
				}
				if free {
					return true
				}
			}
			return false
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(-1, 2*size), rapid.IntRange(1, 8192)).Draw(t, "n")
				want := n > 0 && n <= size && fits(n)
				s, ok := p.Get(n)
				if ok != want {
					t.Fatalf("Get(%d) = %v, model %v", n, ok, want)
				}
				if !ok {
					return
				}
				off := int(s.Addr - p.Memory().Addr())
				if len(s.Data) != n || cap(s.Data) != n || addressOf(s.Data) != s.Addr || off < 0 || off+n > size {
					t.Fatalf("Get(%d): %d bytes at %d", n, len(s.Data), off)
				}
				if align := uint64(min(block(n), 4096)); s.Addr%align != 0 {
					t.Fatalf("Get(%d) at %#x", n, s.Addr)
				}
				for i := range s.Data[:min(n, 64)] {
					s.Data[i] = byte(len(out))
				}
				s.Data[n-1] = byte(n)
				for _, other := range out {
					if s.Addr < other.Addr+uint64(len(other.Data)) && other.Addr < s.Addr+uint64(n) {
						t.Fatalf("Get(%d) overlaps", n)
					}
				}
				out, inUse = append(out, s), inUse+block(n)
			},
			"put": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("nothing is out")
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				p.Put(out[i])
				inUse -= block(len(out[i].Data))
				out = append(out[:i], out[i+1:]...)
			},
			"trim": func(*rapid.T) { p.Trim() },
			"": func(t *rapid.T) {
				s := p.Stats()
				if s.Buffers != len(out) || s.InUse != inUse || s.PeakInUse < inUse || s.Touched > size {
					t.Fatalf("stats %+v, model %d slots of %d bytes", s, len(out), inUse)
				}
				checkPages(t, p, out)
			},
		})
		if len(out) > 0 {
			if err := p.Close(); !errors.Is(err, ErrInUse) {
				t.Fatalf("Close with slots out: %v", err)
			}
		}
		for _, s := range out {
			p.Put(s)
		}
		if err := errors.Join(p.Close(), nic.Close()); err != nil {
			t.Fatal(err)
		}
		if _, ok := p.Get(1); ok || p.Trim() != 0 || p.Close() != ErrClosed {
			t.Fatal("a closed pool works")
		}
	})
}

// checkPages checks the page accounting against the buffers in use.
func checkPages(t failer, p *Pool, out []Buffer) {
	buffers := make([]uint32, len(p.pages.chunks))
	for _, s := range out {
		off := int(s.Addr - p.addr)
		for i := off / p.pages.size; i <= (off+len(s.Data)-1)/p.pages.size; i++ {
			buffers[i]++
		}
	}
	idle := 0
	for i, c := range p.pages.chunks {
		if c.buffers != buffers[i] || c.buffers > 0 && !c.touched {
			t.Fatalf("chunk %d has %d slots, touched %v; model %d", i, c.buffers, c.touched, buffers[i])
		}
		if c.touched && c.buffers == 0 {
			idle++
		}
	}
	if idle != p.pages.idle {
		t.Fatalf("%d idle chunks, counted %d", p.pages.idle, idle)
	}
}

func TestPoolReusesLastBufferFirst(t *testing.T) {
	p, _ := newPool(t, 64<<20)
	for _, n := range []int{512, 4096, 65536, 1 << 20} {
		a, b := p.mustGet(t, n), p.mustGet(t, n)
		p.Put(a)
		p.Put(b)
		again := p.mustGet(t, n)
		if again.Addr != b.Addr {
			t.Errorf("%d bytes: buffer at %#x, want %#x", n, again.Addr, b.Addr)
		}
		p.Put(again)
	}
}

// Small blocks on the stacks must not prevent a large buffer.
func TestPoolJoinsStackedBlocks(t *testing.T) {
	p, _ := newPool(t, 1<<20)
	var out []Buffer
	for {
		s, ok := p.Get(1024)
		if !ok {
			break
		}
		out = append(out, s)
	}
	if len(out) != 1024 {
		t.Fatalf("%d slots", len(out))
	}
	for _, s := range out {
		p.Put(s)
	}
	p.Put(p.mustGet(t, 1<<20))
}

func TestPutOfUnknownBufferPanics(t *testing.T) {
	p, _ := newPool(t, 1<<20)
	other, _ := newPool(t, 1<<20)
	s := p.mustGet(t, 4096)
	foreign := other.mustGet(t, 4096)
	defer other.Put(foreign)
	defer p.Put(p.mustGet(t, 100))
	p.Put(s)
	reused := p.mustGet(t, 4096)
	if reused.Addr != s.Addr {
		t.Fatal("the buffer is not reused")
	}
	for name, bad := range map[string]Buffer{
		"zero": {}, "of another pool": foreign, "put before, and out again": s,
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p.Put(bad)
		})
	}
	p.Put(reused)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic at the second Put")
			}
		}()
		p.Put(reused)
	}()
}

// A burst of large buffers leaves pages behind. They are discarded after a
// period without use, a few at a time, while small I/O continues.
func TestPoolDiscardsIdlePages(t *testing.T) {
	p, o := newPool(t, 64<<20)
	var burst []Buffer
	for range 32 {
		s := p.mustGet(t, 1<<20)
		for i := 0; i < len(s.Data); i += 4096 {
			s.Data[i] = 1
		}
		burst = append(burst, s)
	}
	for _, s := range burst {
		p.Put(s)
	}
	if s := p.Stats(); s.Touched != 32<<20 || o.discards != 0 {
		t.Fatalf("after the burst: %+v, %d discards", s, o.discards)
	}
	for period := 0; p.Stats().Touched > 8<<20; period++ {
		before := o.discards
		for range periodPuts {
			p.Put(p.mustGet(t, 4096))
		}
		if n := o.discards - before; n > discards {
			t.Fatalf("%d discards in a window", n)
		}
		if period > 10 {
			t.Fatalf("%d windows later: %+v", period, p.Stats())
		}
	}
	s := p.Stats()
	if s.Discarded != uint64(o.discarded) || s.Touched < keepFree {
		t.Errorf("stats %+v, %d bytes discarded", s, o.discarded)
	}
	if got := p.Trim(); got == 0 || p.Stats().Touched > keepFree+chunkSize {
		t.Errorf("Trim gives back %d, %+v", got, p.Stats())
	}
	if p.Trim() != 0 {
		t.Error("a second Trim finds more")
	}
	for i, c := range p.pages.chunks {
		if !c.touched && bytes.IndexByte(p.bytes[i<<20:(i+1)<<20], 1) >= 0 {
			t.Errorf("discarded pages of chunk %d keep their content", i)
		}
	}
}

// A queue of large buffers that empties and fills keeps its pages.
func TestPoolKeepsPagesOfABusyQueue(t *testing.T) {
	p, o := newPool(t, 64<<20)
	var queue [32]Buffer
	for range 4 * periodPuts / len(queue) {
		for i := range queue {
			queue[i] = p.mustGet(t, 1<<20)
		}
		for _, s := range queue {
			p.Put(s)
		}
	}
	if o.discards != 0 {
		t.Errorf("%d discards", o.discards)
	}
}

func TestPoolWithoutDiscard(t *testing.T) {
	p, o := newPool(t, 16<<20)
	o.noDiscard = true
	p.Put(p.mustGet(t, 16<<20))
	if got := p.Trim(); got != 0 {
		t.Errorf("Trim gives back %d", got)
	}
	if s := p.Stats(); s.Touched != 16<<20 || s.Discarded != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestPoolDoesNotAllocate(t *testing.T) {
	p, _ := newPool(t, 64<<20)
	sizes := []int{512, 4096, 131072, 1 << 20, 4 << 20}
	n := testing.AllocsPerRun(5000, func() {
		var out [8]Buffer
		for i := range out {
			out[i], _ = p.Get(sizes[i%len(sizes)])
		}
		for i := range out {
			p.Put(out[i])
		}
		p.Get(1 << 30)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A retired pool gives nothing, keeps what is out, and deregisters once.
func TestPoolRetires(t *testing.T) {
	p, o := newPool(t, 1<<20)
	s := p.mustGet(t, 4096)
	p.Retire()
	p.Retire()
	if live, _, deregistered := o.count(); live != 0 || deregistered != 1 {
		t.Errorf("%d regions are live, %d deregistered", live, deregistered)
	}
	if _, ok := p.Get(1); ok {
		t.Error("a retired pool returns a buffer")
	}
	copy(s.Data, "still mine")
	if err := p.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("close with a buffer out: %v", err)
	}
	var none Pool
	if _, ok := none.Get(1); ok || !p.Owns(&s) || none.Owns(&s) || none.Memory() != nil {
		t.Error("the zero pool has memory")
	}
	s.Release()
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	p.Retire()
}
