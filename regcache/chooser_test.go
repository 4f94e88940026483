package regcache

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// The machine of these tests: a copy takes 0.1 ns a byte, and to register 20 µs.
var costs = Calibration{
	Register: Line{Fixed: 15000}, Deregister: Line{Fixed: 5000},
	CopyWarm: Line{PerByte: 0.1}, CopyCold: Line{PerByte: 0.1},
}

// feed runs n operations of a size at places of the rig's arena and tells the
// chooser the times of a machine, until it has decided all.
func (r *rig) feed(t failer, c *Chooser, n, size int, place func(i int) int, machine func(v Choice) time.Duration) {
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

// transfer is what the rest of an operation takes.
const transfer = 5 * time.Microsecond

// copying is a machine on which a copy takes a time and nothing else differs.
func copying(took time.Duration) func(Choice) time.Duration {
	return func(v Choice) time.Duration {
		if v.Zero {
			return transfer
		}
		return transfer + took
	}
}

func chooser(t failer, granules int, cfg Config, mode CopyMode) (*rig, *Chooser) {
	t.Helper()
	r := newRigNoCleanup(t, granules, cfg)
	r.charge(20 * time.Microsecond)
	return r, NewChooser(r.Cache, mode, costs)
}

// charge makes the cache believe that a granule takes a time to register.
func (r *rig) charge(d time.Duration) {
	hook := func(*via.Memory) error {
		r.took.register.ns.Store(int64(d))
		r.took.deregister.ns.Store(1)
		return nil
	}
	r.o.onRegister.Store(&hook)
	_ = hook(nil)
}

func TestChooserOfABufferThatComesBack(t *testing.T) {
	r, c := chooser(t, 8, Config{}, CopyAuto)
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

// Once the ways are known, one operation in 128 takes the other one, neither more nor
// less; before that one in 16.
func TestChooserExploresOneIn128(t *testing.T) {
	r, c := chooser(t, 8, Config{}, CopyAuto)
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

// The first miss of a granule copies, is counted, and explores nothing, whatever
// period it falls into: there is no other way that it could take.
func TestFirstMissIsCopiedAndCounted(t *testing.T) {
	r, c := chooser(t, 2000, Config{MaxRegions: 8}, CopyAuto)
	r.feed(t, c, 2000, 4096, func(i int) int { return i << 20 }, copying(400))
	if s := c.Stats(); s.FirstMisses != 2000 || s.Explored != 0 || s.Misses != 0 || s.BytesCopied != 2000<<12 {
		t.Errorf("%+v", s)
	}
	r.finish(t)
}

// Granules that were used for several operations in a row, in the pass before, are
// registered at the first of them, if these together pay; once used, never.
func TestFirstMissOfWhatIsUsedInARow(t *testing.T) {
	for _, uses := range []int{1, 8} {
		r, c := chooser(t, 64, Config{MaxRegions: 8}, CopyAuto)
		pass := func() ChoiceStats {
			before := c.Stats()
			r.feed(t, c, 64*uses, 64<<10, func(i int) int { return i/uses<<20 + i%uses<<16 }, copying(6500))
			s := c.Stats()
			s.FirstMisses -= before.FirstMisses
			s.Misses -= before.Misses
			return s
		}
		if s := pass(); s.FirstMisses != 64 {
			t.Errorf("the first pass, %d uses: %+v", uses, s)
		}
		pass()
		s := pass()
		if uses == 1 && (s.FirstMisses != 64 || s.Misses != 0) || uses == 8 && (s.FirstMisses != 0 || s.Misses < 60) {
			t.Errorf("the third pass, %d uses: %+v", uses, s)
		}
		r.finish(t)
	}
}

// A copy whose time the owner does not know says nothing about copies.
func TestCopiesWithoutATime(t *testing.T) {
	r, c := chooser(t, 2, Config{}, CopyAuto)
	k := &c.classes[In][classOf(4096)]
	before := k.copies
	timed := 0
	for range 500 {
		v := c.Choose(r.buf(0, 0, 4096), r.tag, RemoteRead, In)
		if v.Timed {
			timed++
		}
		c.Copied(v, 4096, 0)
		c.Copied(v, 4096, -time.Second)
	}
	if timed == 0 || k.copies != before {
		t.Errorf("after %d timed choices a copy takes %+v, before %+v", timed, k.copies, before)
	}
	c.Copied(Choice{Timed: true, class: uint8(classOf(4096)), dir: In}, 4096, time.Millisecond)
	if k.copies == before {
		t.Error("a copy with its time is ignored")
	}
	r.finish(t)
}

// One pass over more memory than is ever registered: where a copy is cheaper than a
// registration nothing is registered but to explore, else everything at once.
func TestChooserOfBuffersThatDoNotComeBack(t *testing.T) {
	for _, dear := range []bool{true, false} {
		r, c := chooser(t, 600, Config{MaxRegions: 8}, CopyAuto)
		copy := 100 * time.Microsecond
		if dear {
			r.charge(500 * time.Microsecond)
		}
		r.feed(t, c, 600, 1<<20, func(i int) int { return i << 20 }, copying(copy))
		s := c.Stats()
		if dear && (s.Misses > 60 || s.FirstMisses < 500) {
			t.Errorf("to register is dear: %+v", s)
		}
		if !dear && s.Misses < 500 {
			t.Errorf("to copy is dear: %+v", s)
		}
		r.finish(t)
	}
}

// The boundary of hits follows what is measured, both ways, and stays where it is
// while the ways are equal.
func TestChooserFollowsMeasurements(t *testing.T) {
	r, c := chooser(t, 2, Config{}, CopyAuto)
	place := func(i int) int { return i % 16 * 4096 }
	side := func() bool { return c.classes[Out][classOf(4096)].hits.zero }
	r.feed(t, c, 6000, 4096, place, copying(2*time.Microsecond))
	if !side() {
		t.Fatal("a copy of 2 µs is preferred")
	}
	slower := func(v Choice) time.Duration { // the fabric is slow with memory of callers
		if v.Zero {
			return transfer + 3*time.Microsecond
		}
		return transfer + time.Microsecond
	}
	r.feed(t, c, 20000, 4096, place, slower)
	if side() {
		t.Fatal("the slower way is preferred")
	}
	flips := 0
	for range 100 {
		before := side()
		r.feed(t, c, 200, 4096, place, func(Choice) time.Duration { return transfer })
		if side() != before {
			flips++
		}
	}
	if flips > 4 {
		t.Errorf("the side of two equal ways changes %d times", flips)
	}
	r.feed(t, c, 20000, 4096, place, copying(2*time.Microsecond))
	if !side() {
		t.Error("the decision does not come back")
	}
	write, read := c.Boundaries()
	if write.Hit == 0 || write.Hit > 4096 || read.Hit == 0 {
		t.Errorf("boundaries %+v, %+v", write, read)
	}
	r.finish(t)
}

// Without times of whole operations, as of a queue that has always more than one
// under way, the processor's time decides.
func TestChooserWithoutWholeTimes(t *testing.T) {
	r, c := chooser(t, 2, Config{}, CopyAuto)
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

func TestChooserModes(t *testing.T) {
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
		k := NewChooser(cache, c.mode, costs)
		buf := map[string][]byte{"arena": r.buf(0, 0, 1<<20), "heap": make([]byte, 1<<20), "nothing": nil}[c.buf]
		if v := k.Choose(buf, r.tag, 0, Out); v.Zero != c.zero {
			t.Errorf("%+v: %+v", c, v)
		}
		write, read := k.Boundaries()
		if all := c.mode == CopyZero && c.cache; all != (write == Boundary{1, 1, 1}) || !c.cache && read != (Boundary{}) {
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

// What goes inside messages is copied, neither counted nor explored, and no boundary is
// in it; a mode that is told to register does.
func TestChooserCopiesInline(t *testing.T) {
	for _, mode := range []CopyMode{CopyAuto, CopyZero} {
		r, c := chooser(t, 1, Config{}, mode)
		c.Inline(Out, 4096)
		r.feed(t, c, 1000, 4096, func(int) int { return 0 }, copying(50*time.Microsecond))
		s := c.Stats()
		if inline := mode == CopyAuto; inline != (s.BytesCopied == 1000*4096) || inline && s.Hits+s.Misses+s.Explored+s.FirstMisses != 0 {
			t.Errorf("%s: %+v", mode, s)
		}
		if b, _ := c.Boundaries(); mode == CopyAuto && (b.Hit < 4096 || b.Miss < 4096 || b.Once < 4096) {
			t.Errorf("a boundary inside what is copied: %+v", b)
		}
		if v := c.Choose(r.buf(0, 0, 4097), r.tag, RemoteRead, Out); mode == CopyAuto && c.Stats().FirstMisses == 0 && !v.Zero {
			t.Errorf("%+v: not asked about what is longer: %+v", v, c.Stats())
		}
		r.finish(t)
	}
}

// A NIC that cannot register, because RLIMIT_MEMLOCK is too small, is not asked for
// every operation.
func TestChooserLeavesARefusingNICAlone(t *testing.T) {
	for _, mode := range []CopyMode{CopyAuto, CopyZero} {
		r := newRigNoCleanup(t, 1, Config{})
		asked := 0
		hook := func(*via.Memory) error { asked++; return syscall.ENOMEM }
		r.o.onRegister.Store(&hook)
		c := NewChooser(r.Cache, mode, costs)
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
	r, c := chooser(t, 2, Config{}, CopyAuto)
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
	r, c := chooser(b, 2, Config{}, CopyAuto)
	buf := r.buf(0, 0, 65536)
	r.feed(b, c, 500, 65536, func(int) int { return 0 }, copying(time.Microsecond))
	b.ReportAllocs()
	for b.Loop() {
		c.Choose(buf, r.tag, RemoteRead, Out)
	}
	b.StopTimer()
	r.finish(b)
}
