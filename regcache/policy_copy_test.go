package regcache

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// costs describe the machine of these tests: a copy takes 0.1 ns a byte, and a
// registration 20 µs.
var costs = Calibration{
	Register: Line{Fixed: 15000}, Deregister: Line{Fixed: 5000},
	CopyWarm: Line{PerByte: 0.1}, CopyCold: Line{PerByte: 0.1},
}

// feed runs n operations of a size at places of the rig's arena and reports the
// times of a machine to the policy.
func (r *rig) feed(t failer, c *CopyPolicy, n, size int, place func(i int) int, machine func(v Choice) time.Duration) {
	t.Helper()
	for i := range n {
		at := place(i)
		buf := r.arena.Bytes()[at : at+size : at+size]
		v := c.Choose(buf, r.tag, RemoteRead, Out)
		if v.Zero {
			l, err := r.Acquire(buf, r.tag, RemoteRead)
			if err != nil {
				t.Fatalf("Acquire: %v", err)
			}
			r.o.use(&l)()
			l.Release()
			c.Moved(size)
		} else {
			c.Copied(v, size, time.Duration(0.1*float64(size)))
		}
		if v.Timed {
			c.Finished(v, machine(v))
		}
	}
}

// transfer is the time of the rest of an operation.
const transfer = 5 * time.Microsecond

// copying is a machine on which a copy takes a time and the paths do not differ
// otherwise.
func copying(elapsed time.Duration) func(Choice) time.Duration {
	return func(v Choice) time.Duration {
		if v.Zero {
			return transfer
		}
		return transfer + elapsed
	}
}

func newCopyRig(t failer, granules int, cfg Config, mode CopyMode) (*rig, *CopyPolicy) {
	t.Helper()
	r := newRigNoCleanup(t, granules, cfg)
	r.charge(20 * time.Microsecond)
	return r, NewCopyPolicy(r.Cache, mode, costs)
}

// charge sets the cache's cost of registering a granule.
func (r *rig) charge(d time.Duration) {
	hook := func(*via.Memory) error {
		r.cost.register.ns.Store(int64(d))
		r.cost.deregister.ns.Store(1)
		return nil
	}
	r.o.onRegister.Store(&hook)
	_ = hook(nil)
}

func TestCopyPolicyReusedBuffer(t *testing.T) {
	r, c := newCopyRig(t, 8, Config{}, CopyAuto)
	r.feed(t, c, 1, 64<<10, func(int) int { return 0 }, copying(6500))
	if s := c.Stats(); s.FirstMisses+s.Explored < 1 || s.Hits != 0 {
		t.Errorf("after the first use: %+v", s)
	}
	r.feed(t, c, 2000, 64<<10, func(int) int { return 0 }, copying(6500))
	s := c.Stats()
	if s.Hits < 1900 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
	if s.BytesCopied+s.BytesZeroCopied != 2001*64<<10 {
		t.Errorf("%+v: bytes are missing", s)
	}
	r.finish(t)
}

// Exactly one operation in 128 takes the other path once the paths have been
// compared; before that one in 16.
func TestCopyPolicyExploresOneIn128(t *testing.T) {
	r, c := newCopyRig(t, 8, Config{}, CopyAuto)
	feed := func(n int) uint64 {
		before := c.Stats().Explored
		r.feed(t, c, n, 64<<10, func(i int) int { return i % 8 << 20 }, copying(6500))
		return c.Stats().Explored - before
	}
	const young = 8 * exploreEvery
	if n := feed(young); n == 0 || n > young/youngEvery {
		t.Errorf("%d of the first %d operations explore", n, young)
	}
	feed(exploreBurst * exploreEvery) // the period that began before
	for range 20 {
		const ops = 50 * exploreBurst * exploreEvery
		if n := feed(ops); n > ops/exploreEvery+exploreBurst || n < ops/exploreEvery-exploreBurst {
			t.Fatalf("%d of %d operations explore, want %d", n, ops, ops/exploreEvery)
		}
	}
	r.finish(t)
}

// The first miss of a granule copies, is counted, and explores nothing, in any
// period: no other path is open to it.
func TestFirstMissIsCopied(t *testing.T) {
	r, c := newCopyRig(t, 2000, Config{MaxRegions: 8}, CopyAuto)
	r.feed(t, c, 2000, 4096, func(i int) int { return i << 20 }, copying(400))
	if s := c.Stats(); s.FirstMisses != 2000 || s.Explored != 0 || s.Misses != 0 || s.BytesCopied != 2000<<12 {
		t.Errorf("%+v", s)
	}
	r.finish(t)
}

// Once granules are known to have several consecutive uses, the others are
// registered at their first miss, if these uses together pay; granules used
// once never are.
func TestFirstMissOfGranuleWithConsecutiveUses(t *testing.T) {
	for _, uses := range []int{1, 8} {
		r, c := newCopyRig(t, 64, Config{MaxRegions: 8}, CopyAuto)
		pass := func() ChoiceStats {
			before := c.Stats()
			r.feed(t, c, 64*uses, 64<<10, func(i int) int { return i/uses<<20 + i%uses<<16 }, copying(6500))
			s := c.Stats()
			s.FirstMisses -= before.FirstMisses
			s.Misses -= before.Misses
			return s
		}
		s := pass()
		if uses == 1 && s.FirstMisses != 64 || uses == 8 && (s.FirstMisses == 0 || s.FirstMisses > 32) {
			t.Errorf("the first pass, %d uses: %+v", uses, s)
		}
		s = pass()
		if uses == 1 && (s.FirstMisses != 64 || s.Misses != 0) || uses == 8 && (s.FirstMisses != 0 || s.Misses < 60) {
			t.Errorf("the second pass, %d uses: %+v", uses, s)
		}
		r.finish(t)
	}
}

// A copy without a time does not change the estimate.
func TestUntimedCopies(t *testing.T) {
	r, c := newCopyRig(t, 2, Config{}, CopyAuto)
	k := &c.classes[In][classOf(4096)]
	before := k.copies.mean()
	timed := 0
	for range 500 {
		v := c.Choose(r.buf(0, 0, 4096), r.tag, RemoteRead, In)
		if v.Timed {
			timed++
		}
		c.Copied(v, 4096, 0)
		c.Copied(v, 4096, -time.Second)
	}
	if timed == 0 || k.copies.mean() != before {
		t.Errorf("after %d timed choices a copy takes %v, before %v", timed, k.copies.mean(), before)
	}
	c.Copied(Choice{Timed: true, class: uint8(classOf(4096)), dir: In}, 4096, time.Millisecond)
	if k.copies.mean() == before {
		t.Error("a copy with its time is ignored")
	}
	r.finish(t)
}

// One pass over more memory than the budget: if a copy is cheaper than a
// registration nothing registers, otherwise everything is registered
// at once.
func TestCopyPolicySinglePass(t *testing.T) {
	for _, expensive := range []bool{true, false} {
		r, c := newCopyRig(t, 600, Config{MaxRegions: 8}, CopyAuto)
		copy := 100 * time.Microsecond
		if expensive {
			r.charge(500 * time.Microsecond)
		}
		r.feed(t, c, 600, 1<<20, func(i int) int { return i << 20 }, copying(copy))
		s := c.Stats()
		if expensive && (s.Misses != 0 || s.FirstMisses != 600) {
			t.Errorf("registering is expensive: %+v", s)
		}
		if !expensive && s.Misses < 500 {
			t.Errorf("copying is expensive: %+v", s)
		}
		r.finish(t)
	}
}

// The boundary of hits follows the measurements in both directions, and is
// stable while the paths are equal.
func TestCopyPolicyFollowsMeasurements(t *testing.T) {
	r, c := newCopyRig(t, 2, Config{}, CopyAuto)
	place := func(i int) int { return i % 16 * 4096 }
	zeroCopies := func() bool { return c.classes[Out][classOf(4096)].benefit() > 0 }
	r.feed(t, c, 6000, 4096, place, copying(2*time.Microsecond))
	if !zeroCopies() {
		t.Fatal("a copy of 2 µs is preferred")
	}
	slower := func(v Choice) time.Duration { // the fabric is slow with memory of callers
		if v.Zero {
			return transfer + 3*time.Microsecond
		}
		return transfer + time.Microsecond
	}
	r.feed(t, c, 20000, 4096, place, slower)
	if zeroCopies() {
		t.Fatal("the slower way is preferred")
	}
	flips := 0
	for range 100 {
		before := zeroCopies()
		r.feed(t, c, 200, 4096, place, func(Choice) time.Duration { return transfer })
		if zeroCopies() != before {
			flips++
		}
	}
	if flips > 4 {
		t.Errorf("the side of two equal ways changes %d times", flips)
	}
	r.feed(t, c, 20000, 4096, place, copying(2*time.Microsecond))
	if !zeroCopies() {
		t.Error("the decision does not come back")
	}
	write, read := c.Boundaries()
	if write.Hit == 0 || write.Hit > 4096 || read.Hit == 0 {
		t.Errorf("boundaries %+v, %+v", write, read)
	}
	r.finish(t)
}

// Without latencies, as in a queue with always more than one operation in
// flight, the processor time decides.
func TestCopyPolicyWithoutLatencies(t *testing.T) {
	r, c := newCopyRig(t, 2, Config{}, CopyAuto)
	for i := range 4000 {
		buf := r.buf(0, i%16*4096, 4096)
		v := c.Choose(buf, r.tag, RemoteRead, In)
		if !v.Zero {
			c.Copied(v, 4096, time.Microsecond)
			continue
		}
		l := must(r.Acquire(buf, r.tag, RemoteRead))(t)
		l.Release()
	}
	if s := c.Stats(); s.Hits < 3000 {
		t.Errorf("%+v", s)
	}
	r.finish(t)
}

func TestCopyModes(t *testing.T) {
	for _, c := range []struct {
		mode  CopyMode
		cache bool
		buf   string
		zero  bool
	}{
		{CopyBounce, true, "arena", false},
		{CopyZero, true, "arena", true},
		{CopyZero, true, "heap", false},
		{CopyZero, true, "nothing", false},
		{CopyZero, false, "arena", false},
		{CopyAuto, false, "arena", false},
		{CopyAuto, true, "heap", false},
		{CopyAuto, true, "nothing", false},
	} {
		r := newRigNoCleanup(t, 1, Config{})
		cache := r.Cache
		if !c.cache {
			cache = nil
		}
		k := NewCopyPolicy(cache, c.mode, costs)
		buf := map[string][]byte{"arena": r.buf(0, 0, 1<<20), "heap": make([]byte, 1<<20), "nothing": nil}[c.buf]
		if v := k.Choose(buf, r.tag, 0, Out); v.Zero != c.zero {
			t.Errorf("%+v: %+v", c, v)
		}
		write, read := k.Boundaries()
		if all := c.mode == CopyZero && c.cache; all != (write == Boundary{1, 1}) || !c.cache && read != (Boundary{}) {
			t.Errorf("%+v: boundaries %+v, %+v", c, write, read)
		}
		r.finish(t)
	}
	if _, err := ParseCopyMode("fast"); !errors.Is(err, via.ErrInvalidParameter) {
		t.Errorf("mode fast: %v", err)
	}
	for _, m := range append(CopyModes(), "") {
		if got, err := ParseCopyMode(string(m)); err != nil || m != "" && got != m || m == "" && got != CopyAuto {
			t.Errorf("mode %q: %q, %v", m, got, err)
		}
	}
}

// CopyAuto copies inline payload without counting or exploring, and no boundary
// lies within it; CopyZero registers it.
func TestCopyPolicyCopiesInlinePayload(t *testing.T) {
	for _, mode := range []CopyMode{CopyAuto, CopyZero} {
		r, c := newCopyRig(t, 1, Config{}, mode)
		c.Inline(Out, 4096)
		r.feed(t, c, 1000, 4096, func(int) int { return 0 }, copying(50*time.Microsecond))
		s := c.Stats()
		if inline := mode == CopyAuto; inline != (s.BytesCopied == 1000*4096) || inline && s.Hits+s.Misses+s.Explored+s.FirstMisses != 0 {
			t.Errorf("%s: %+v", mode, s)
		}
		if b, _ := c.Boundaries(); mode == CopyAuto && (b.Hit < 4096 || b.FirstMiss < 4096) {
			t.Errorf("a boundary inside what is copied: %+v", b)
		}
		if v := c.Choose(r.buf(0, 0, 4097), r.tag, RemoteRead, Out); mode == CopyAuto && c.Stats().FirstMisses == 0 && !v.Zero {
			t.Errorf("%+v: not asked about what is longer: %+v", v, c.Stats())
		}
		r.finish(t)
	}
}

// A NIC that cannot register, because RLIMIT_MEMLOCK is too small, is not
// called for every operation.
func TestCopyPolicyBacksOffAfterRefusals(t *testing.T) {
	for _, mode := range []CopyMode{CopyAuto, CopyZero} {
		r := newRigNoCleanup(t, 1, Config{})
		asked := 0
		hook := func(*via.Memory) error { asked++; return syscall.ENOMEM }
		r.o.onRegister.Store(&hook)
		c := NewCopyPolicy(r.Cache, mode, costs)
		buf := r.buf(0, 0, 1<<20)
		for range 5000 {
			v := c.Choose(buf, r.tag, RemoteRead, Out)
			if v.Zero {
				if _, err := r.Acquire(buf, r.tag, RemoteRead); !errors.Is(err, ErrBudget) {
					t.Fatalf("Acquire: %v", err)
				}
				c.Refused()
			}
			c.Copied(v, len(buf), 100*time.Microsecond)
		}
		if asked == 0 || asked > 200 {
			t.Errorf("%s: asked %d times in 5000 operations", mode, asked)
		}
		if s := c.Stats(); s.BytesCopied != 5000<<20 || s.Refusals == 0 {
			t.Errorf("%+v", s)
		}
		r.finish(t)
	}
}

func TestChooseDoesNotAllocate(t *testing.T) {
	r, c := newCopyRig(t, 2, Config{}, CopyAuto)
	buf := r.buf(0, 0, 65536)
	r.feed(t, c, 500, 65536, func(int) int { return 0 }, copying(time.Microsecond))
	if n := testing.AllocsPerRun(2000, func() {
		v := c.Choose(buf, r.tag, RemoteRead, Out)
		if l, ok := r.AcquireCached(buf, r.tag, RemoteRead); ok && v.Zero {
			c.Moved(len(buf))
			l.Release()
			return
		} else if ok {
			l.Release()
		}
		c.Copied(v, len(buf), 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r.finish(t)
}

func BenchmarkChoose(b *testing.B) {
	r, c := newCopyRig(b, 2, Config{}, CopyAuto)
	buf := r.buf(0, 0, 65536)
	r.feed(b, c, 500, 65536, func(int) int { return 0 }, copying(time.Microsecond))
	b.ReportAllocs()
	for b.Loop() {
		c.Choose(buf, r.tag, RemoteRead, Out)
	}
	b.StopTimer()
	r.finish(b)
}
