package regcache

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

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

// The average lies within the range of the times, whatever it starts from, if
// one in ten is interrupted.
func TestCostEWMAOfInterruptedTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Float64Range(100, 1e6).Draw(t, "least")
		var e costEWMA
		e.add(time.Duration(least * rapid.Float64Range(0.1, 10).Draw(t, "start")))
		for i := range 400 {
			e.add(time.Duration(least * rapid.Float64Range(1, 1.2).Draw(t, "factor")))
			if i%10 == 0 {
				e.add(time.Duration(least * 1000))
			}
		}
		if ns := float64(e.mean()); ns < least*0.8 || ns > least*1.6 {
			t.Fatalf("average %.1f of times from %.1f to %.1f", ns, least, least*1.2)
		}
	})
}

// Persistent load is part of the average; one interruption is not.
func TestCostEWMA(t *testing.T) {
	var m costEWMA
	if m.mean() != 0 {
		t.Errorf("%v before the first time", m.mean())
	}
	m.add(1000)
	for range 100 {
		m.add(1000)
		m.add(3000)
	}
	if got := m.mean(); got < 1400 || got > 2500 {
		t.Errorf("%v, of times of 1 and 3 µs in turn", got)
	}
	before := m.mean()
	m.add(time.Second)
	if got := m.mean(); got > before*9/8 {
		t.Errorf("%v after an interruption, %v before", got, before)
	}
	for range 100 {
		m.add(0)
	}
	if got := m.mean(); got < 1 || got > 10 {
		t.Errorf("%v after times of nothing", got)
	}
	for range 100 {
		m.add(1000)
	}
	if got := m.mean(); got < 900 || got > 1000 {
		t.Errorf("%v after times of 1 µs, from nothing", got)
	}
}
