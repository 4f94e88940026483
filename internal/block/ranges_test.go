package block

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// held returns how many units are held and how many waiters there are: none in
// an unused disk.
func (r *Ranges) held() (units, waiters int) {
	for i := range r.table {
		b := &r.table[i]
		b.mu.Lock()
		for z := &b.first; z != nil; z = z.next {
			busy := z.writers
			for _, plane := range z.readers {
				busy |= plane
			}
			units += bits.OnesCount64(busy)
			for w := z.head; w != nil; w = w.next {
				waiters++
			}
		}
		b.mu.Unlock()
	}
	return units, waiters
}

// access is a waiter or a holder in the plain model of Ranges: a list of
// units for each zone.
type access struct {
	off, n  int64
	write   bool
	at      int64 // zone that it waits for
	granted bool
	wait    Wait
}

func (a *access) String() string {
	return fmt.Sprintf("%d bytes at %d, write %v", a.n, a.off, a.write)
}

// has reports whether the access is about a unit.
func (a *access) has(unit int64) bool {
	return unit >= a.off/AtomicUnit && unit <= (a.off+a.n-1)/AtomicUnit
}

func (a *access) zones() (first, last int64) {
	const zone = zoneUnits * AtomicUnit
	return a.off / zone, (a.off + a.n - 1) / zone
}

// conflicts reports whether two accesses exclude each other in a zone.
func (a *access) conflicts(b *access, zone int64) bool {
	if !a.write && !b.write {
		return false
	}
	for unit := zone * zoneUnits; unit < (zone+1)*zoneUnits; unit++ {
		if a.has(unit) && b.has(unit) {
			return true
		}
	}
	return false
}

// rangesModel is Ranges in the plainest way: who is in which zone.
type rangesModel struct {
	holds, waits map[int64][]*access
}

// free reports whether a may have its part of a zone before the waiters from
// position on.
func (m *rangesModel) free(a *access, zone int64, position int) bool {
	excludes := func(b *access) bool { return a.conflicts(b, zone) }
	if slices.ContainsFunc(m.holds[zone], excludes) || slices.ContainsFunc(m.waits[zone][:position], excludes) {
		return false
	}
	if a.write {
		return true
	}
	for unit := zone * zoneUnits; unit < (zone+1)*zoneUnits; unit++ {
		readers := 0
		for _, h := range m.holds[zone] {
			if a.has(unit) && h.has(unit) {
				readers++
			}
		}
		if readers == 1<<readerPlanes-1 {
			return false
		}
	}
	return true
}

func (m *rangesModel) try(a *access) bool {
	first, last := a.zones()
	for z := first; z <= last; z++ {
		if !m.free(a, z, len(m.waits[z])) {
			return false
		}
	}
	m.proceed(a, first)
	return true
}

// acquireRest takes zones until one is not free.
func (m *rangesModel) proceed(a *access, zone int64) {
	for _, last := a.zones(); zone <= last; zone++ {
		if !m.free(a, zone, len(m.waits[zone])) {
			a.at = zone
			m.waits[zone] = append(m.waits[zone], a)
			return
		}
		m.holds[zone] = append(m.holds[zone], a)
	}
	a.granted = true
}

func (m *rangesModel) release(a *access) {
	is := func(b *access) bool { return a == b }
	first, last := a.zones()
	for z := first; z <= last; z++ {
		m.holds[z] = slices.DeleteFunc(m.holds[z], is)
		var through []*access
		for i := 0; i < len(m.waits[z]); {
			w := m.waits[z][i]
			if !m.free(w, z, i) {
				i++
				continue
			}
			m.waits[z] = slices.Delete(m.waits[z], i, i+1)
			m.holds[z] = append(m.holds[z], w)
			through = append(through, w)
		}
		for _, w := range through {
			m.proceed(w, z+1)
		}
	}
}

// TestRangesAgainstModel has accesses come and go on a few zones, of which some
// share a bucket, and compares who holds what with the plain model.
func TestRangesAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, m := NewRanges(), &rangesModel{map[int64][]*access{}, map[int64][]*access{}}
		stride := rapid.SampledFrom([]int64{1, 7, 1 << 20}).Draw(t, "stride") * zoneUnits * AtomicUnit
		var got, want []*access // the same, in the same order; none that is released
		granted := map[*access]int{}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			if ready := slices.IndexFunc(want, func(a *access) bool { return a.granted }); ready >= 0 && rapid.IntRange(0, 2).Draw(t, "end") == 0 {
				a := got[ready]
				r.Release(a.off, a.n, a.write)
				m.release(want[ready])
				got, want = slices.Delete(got, ready, ready+1), slices.Delete(want, ready, ready+1)
			} else {
				a := &access{
					off:   rapid.Int64Range(0, 30).Draw(t, "zone")*stride + rapid.Int64Range(0, 70*AtomicUnit).Draw(t, "offset"),
					n:     rapid.Int64Range(1, 150*AtomicUnit).Draw(t, "length"),
					write: rapid.Bool().Draw(t, "write"),
				}
				if rapid.Bool().Draw(t, "small") {
					a.off, a.n = a.off%(3*zoneUnits*AtomicUnit), min(a.n, 2*AtomicUnit)
				}
				b := &access{off: a.off, n: a.n, write: a.write}
				a.wait.Granted = func() { a.granted = true; granted[a]++ }
				if rapid.Bool().Draw(t, "try") {
					a.granted = r.TryAcquire(a.off, a.n, a.write)
					if ok := m.try(b); a.granted != ok {
						t.Fatalf("TryAcquire of %v is %v, the model says %v", a, a.granted, ok)
					}
					if !a.granted {
						continue
					}
				} else {
					a.granted = r.Acquire(&a.wait, a.off, a.n, a.write)
					first, _ := b.zones()
					m.proceed(b, first)
				}
				got, want = append(got, a), append(want, b)
			}
			for i := range got {
				if got[i].granted != want[i].granted || granted[got[i]] > 1 {
					t.Fatalf("%v: held is %v, the model says %v; granted %d times",
						got[i], got[i].granted, want[i].granted, granted[got[i]])
				}
			}
		}
		for len(got) > 0 {
			ready := slices.IndexFunc(got, func(a *access) bool { return a.granted })
			if ready < 0 {
				t.Fatalf("%d accesses wait for each other", len(got))
			}
			a := got[ready]
			got = slices.Delete(got, ready, ready+1)
			r.Release(a.off, a.n, a.write)
		}
		if units, waiters := r.held(); units != 0 || waiters != 0 {
			t.Fatalf("%d units are held and %d wait when all have gone", units, waiters)
		}
	})
}

// TestReadersAboveTheCountWait: as many share a unit as are counted, and one
// more waits like any other access.
func TestReadersAboveTheCountWait(t *testing.T) {
	const most = 1<<readerPlanes - 1
	r := NewRanges()
	for i := range most {
		if !r.TryAcquire(int64(i), 1, false) {
			t.Fatalf("reader %d of a unit is refused", i)
		}
	}
	if r.TryAcquire(0, 3*AtomicUnit, false) || !r.TryAcquire(AtomicUnit, 2*AtomicUnit, false) {
		t.Error("the count is not one of units")
	}
	granted := false
	w := &Wait{Granted: func() { granted = true }}
	if r.Acquire(w, 0, 1, false) || granted {
		t.Fatal("more readers hold a unit than are counted")
	}
	r.Release(0, 1, false)
	if !granted {
		t.Fatal("the reader that waited is forgotten")
	}
}

// TestRangesKeepApart has goroutines use plain memory that only Ranges guard:
// the race detector is the judge.
func TestRangesKeepApart(t *testing.T) {
	const units = 3 * zoneUnits
	r := NewRanges()
	var memory, last [units]int
	var running sync.WaitGroup
	for seed := range uint64(6) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, 3))
			ready := make(chan struct{}, 1)
			w := &Wait{Granted: func() { ready <- struct{}{} }}
			for range 4000 {
				first := random.IntN(units)
				n := 1 + random.IntN(min(units-first, 1+random.IntN(units)))
				off, length, write := int64(first)*AtomicUnit, int64(n)*AtomicUnit, random.IntN(2) == 0
				switch {
				case random.IntN(2) == 0:
					if !r.TryAcquire(off, length, write) {
						continue
					}
				case !r.Acquire(w, off, length, write):
					<-ready
				}
				for u := first; u < first+n; u++ {
					if memory[u] != last[u] {
						t.Errorf("unit %d is torn", u)
					}
					if write {
						memory[u]++
						last[u]++
					}
				}
				r.Release(off, length, write)
			}
		})
	}
	running.Wait()
	if units, waiters := r.held(); units != 0 || waiters != 0 {
		t.Errorf("%d units are held and %d wait when all have gone", units, waiters)
	}
}

// TestRangesAllocNothing without waiters.
func TestRangesAllocNothing(t *testing.T) {
	r := NewRanges()
	off := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		off += 1234 * AtomicUnit
		if !r.TryAcquire(off, 1<<20, true) {
			t.Fatal("refused")
		}
		r.Release(off, 1<<20, true)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRanges is the cost for a request without overlap.
func BenchmarkRanges(b *testing.B) {
	for _, size := range []int64{4 << 10, 128 << 10, 1 << 20} {
		for _, write := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dKiB/write=%v", size>>10, write), func(b *testing.B) {
				r := NewRanges()
				for i := range int64(b.N) {
					off := i * 7919 * AtomicUnit % (1 << 30)
					if !r.TryAcquire(off, size, write) {
						b.Fatal("refused")
					}
					r.Release(off, size, write)
				}
			})
		}
	}
	b.Run("4KiB/parallel", func(b *testing.B) {
		r := NewRanges()
		b.RunParallel(func(pb *testing.PB) {
			off := rand.Int64N(1<<20) * AtomicUnit
			for pb.Next() {
				off = (off + 7919*AtomicUnit) % (1 << 40)
				if r.TryAcquire(off, AtomicUnit, true) {
					r.Release(off, AtomicUnit, true)
				}
			}
		})
	})
}

// TestLongRangesLeaveShortChains: a long range leaves no long chains behind,
// which every later access would pass.
func TestLongRangesLeaveShortChains(t *testing.T) {
	r := NewRanges()
	if !r.TryAcquire(0, 4<<30, true) {
		t.Fatal("refused")
	}
	if r.TryAcquire(4<<30-AtomicUnit, 2*AtomicUnit, false) {
		t.Fatal("the end of the range is not held")
	}
	r.Release(0, 4<<30, true)
	for i := range r.table {
		n := 0
		for z := r.table[i].first.next; z != nil; z = z.next {
			n++
		}
		if n > unusedZones || n != r.table[i].chained {
			t.Fatalf("bucket %d has %d zones, counts %d", i, n, r.table[i].chained)
		}
	}
	if units, _ := r.held(); units != 0 {
		t.Errorf("%d units are held", units)
	}
}
