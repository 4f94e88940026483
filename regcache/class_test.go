package regcache

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A side changes when the other was better twice, one after the other, by the margin.
func TestSideChangesSlowly(t *testing.T) {
	s := side{zero: true}
	for i, c := range []struct {
		gain float64
		zero bool
	}{{-10, true}, {1, true}, {-10, true}, {-1, true}, {-10, true}, {-10, false}, {10, false}, {-5, false}, {10, false}, {10, true}} {
		if s.judge(c.gain, 2); s.zero != c.zero {
			t.Fatalf("step %d: %+v", i, s)
		}
	}
}

// While misses register and cost more than they gain, beside what is found anyway, they
// come to rest, and go on when nothing is found any more.
func TestMissesRest(t *testing.T) {
	const registration = 100e3
	var k class
	k.init(1<<18, &Calibration{
		Register: Line{Fixed: registration}, CopyWarm: Line{Fixed: 20e3}, CopyCold: Line{Fixed: 20e3},
	})
	feed := func(n int, found func(i int) bool) {
		for i := range n {
			hit := found(i)
			k.came(hit, true, hit || k.misses.zero)
			k.ops++
			if k.ops%window == 0 {
				k.judgeMisses(registration)
			}
		}
	}
	most := func(i int) bool { return i%7 != 0 } // pays, but barely
	feed(2*leastRest, most)
	if k.misses.zero || k.off.hits < 0.8 {
		t.Fatalf("misses register on: %+v", k)
	}
	if feed(2*recent, func(i int) bool { return k.misses.zero && most(i) || i%10 == 0 }); !k.misses.zero {
		t.Errorf("misses rest on, although nothing is found: %+v", k)
	}
}

// Where granules come back but what is registered for them never lasts until then, each
// trial that fails makes the next one come later.
func TestHopeIsLost(t *testing.T) {
	const registration = 100e3
	var k class
	k.init(1<<18, &Calibration{
		Register: Line{Fixed: registration}, CopyWarm: Line{Fixed: 20e3}, CopyCold: Line{Fixed: 20e3},
	})
	var trials []uint64 // when they began
	for k.ops < 1<<20 {
		before := k.misses.zero
		k.came(false, true, before)
		k.ops++
		if k.ops%window == 0 {
			k.judgeMisses(registration)
		}
		if k.misses.zero && !before {
			trials = append(trials, k.ops)
		}
	}
	n := len(trials)
	if n < 4 {
		t.Fatalf("trials at %v", trials)
	}
	if first, last := trials[1]-trials[0], trials[n-1]-trials[n-2]; last < 4*first {
		t.Errorf("%d operations between the first trials and %d between the last of %d", first, last, n)
	}
}

func TestSizeClasses(t *testing.T) {
	for i := range sizeClasses {
		if n := classSize(i); classOf(n) != i || i > 0 && classOf(n-1) != i-1 {
			t.Errorf("class %d of %d bytes is %d, below %d", i, n, classOf(n), classOf(n-1))
		}
	}
	if classOf(1) != 0 || classOf(64<<20) != sizeClasses-1 {
		t.Error("what is smaller or larger is not in the first or last class")
	}
}

// Whatever the times are, the estimate lies among them.
func TestEstimate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Float64Range(1, 1e6).Draw(t, "least")
		e := estimate{ns: least * rapid.Float64Range(0.1, 10).Draw(t, "start")}
		for range 400 {
			e.add(least * rapid.Float64Range(1, 1.2).Draw(t, "factor"))
			if rapid.IntRange(0, 20).Draw(t, "late") == 0 {
				e.add(least * 1000)
			}
		}
		if e.ns < least*0.8 || e.ns > least*1.6 {
			t.Fatalf("estimate %.1f of times from %.1f to %.1f", e.ns, least, least*1.2)
		}
	})
}

// What goes on all the time is part of what a registration takes; one interruption is not.
func TestMoving(t *testing.T) {
	var m moving
	if m.typical() != 0 {
		t.Errorf("%v before the first time", m.typical())
	}
	m.add(1000)
	for range 100 {
		m.add(1000)
		m.add(3000)
	}
	if got := m.typical(); got < 1400 || got > 2500 {
		t.Errorf("%v, of times of 1 and 3 µs in turn", got)
	}
	before := m.typical()
	m.add(time.Second)
	if got := m.typical(); got > before*9/8 {
		t.Errorf("%v after an interruption, %v before", got, before)
	}
	for range 100 {
		m.add(0)
	}
	if got := m.typical(); got < 1 || got > 10 {
		t.Errorf("%v after times of nothing", got)
	}
	for range 100 {
		m.add(1000)
	}
	if got := m.typical(); got < 900 || got > 1000 {
		t.Errorf("%v after times of 1 µs, from nothing", got)
	}
}
