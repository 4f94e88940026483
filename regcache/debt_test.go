package regcache

import (
	"testing"
	"time"
)

// size64K is copied in 6.5 µs; the machine of these tests registers in 20 µs.
const size64K = 64 << 10

// A granule in use is registered once its copies cost more than a registration:
// at the fourth use of 64 KiB. Its debt is forgotten when it is not in use any
// more, and half of it remains when its registration is evicted.
func TestGranuleIsRegisteredWhenItsCopiesCostMore(t *testing.T) {
	r, c := newCopyRig(t, 64, Config{MaxRegions: 8}, CopyAuto)
	registered := func() bool { return r.region(0) != nil }
	use := func(granule, n int) {
		r.feed(t, c, n, size64K, func(int) int { return granule << 20 }, copying(6500))
	}
	leave := func() { // as many other granules as the budget are used
		for g := 1; g <= 8; g++ {
			use(g, 1)
		}
	}
	for range 3 {
		use(0, 3)
		if registered() {
			t.Fatal("registered before the copies cost more")
		}
		leave()
	}
	if use(0, 4); !registered() {
		t.Fatal("the copies cost more, and the granule is not registered")
	}
	evict := func() {
		if err := r.Invalidate(r.buf(0, 0, size64K)); err != nil {
			t.Fatal(err)
		}
		if registered() {
			t.Fatal("still registered")
		}
	}
	evict()
	if use(0, 1); registered() {
		t.Error("registered again by a debt that was paid")
	}
	if use(0, 1); !registered() {
		t.Error("half of the debt is forgotten")
	}
	evict()
	leave()
	if use(0, 2); registered() {
		t.Error("registered again by the debt of a granule that was not in use any more")
	}
	r.finish(t)
}

// The uses of four streams in turn are counted for each, so the granules of
// their second half are registered at their first use.
func TestFirstMissOfAlternatingStreams(t *testing.T) {
	const streams, each, uses = 4, 16, 6 // streams, granules of each, uses of a granule
	r, c := newCopyRig(t, streams*each, Config{MaxRegions: 32}, CopyAuto)
	pass := func(first int) ChoiceStats {
		before := c.Stats()
		r.feed(t, c, streams*each/2*uses, size64K, func(i int) int {
			stream, at := i%streams, i/streams
			return (stream*each+first+at/uses)<<20 + at%uses<<16
		}, copying(6500))
		s := c.Stats()
		s.FirstMisses -= before.FirstMisses
		s.Misses -= before.Misses
		return s
	}
	if s := pass(0); s.FirstMisses < streams {
		t.Errorf("the first half: %+v", s)
	}
	if s := pass(each / 2); s.FirstMisses != 0 || s.Misses < streams*each/2 {
		t.Errorf("the second half: %+v", s)
	}
	r.finish(t)
}

// Where memory in place is slower, registrations cost about a hundredth of what
// the copies do, and no less: the machine may change.
func TestSlowMemoryInPlaceIsMeasuredNowAndThen(t *testing.T) {
	r, c := newCopyRig(t, 64, Config{MaxRegions: 8}, CopyAuto)
	slow := func(v Choice) time.Duration {
		if v.Zero {
			return transfer + 20*time.Microsecond
		}
		return transfer + 6500
	}
	r.feed(t, c, 4000, size64K, func(i int) int { return i % 4 << 20 }, slow)
	if c.classes[Out][classOf(size64K)].benefit() > 0 {
		t.Fatal("slow memory is used in place")
	}
	before := c.Stats().Misses
	const ops = 20000
	for i := range ops / 100 { // granules do not stay registered
		if err := r.Invalidate(r.arena.Bytes()[:4<<20]); err != nil {
			t.Fatal(err)
		}
		r.feed(t, c, 100, size64K, func(int) int { return i % 4 << 20 }, slow)
	}
	price, copies := 20e3, 6500*float64(ops)
	if n := float64(c.Stats().Misses - before); n < 0.002*copies/price || n > 0.03*copies/price {
		t.Errorf("%.0f registrations in %d operations", n, ops)
	}
	r.finish(t)
}
