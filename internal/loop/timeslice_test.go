package loop

import (
	"runtime"
	"testing"
	"time"
)

// virtual is a loop in virtual time.
type virtual struct {
	timeSlice
	now    time.Time
	yields int
}

// sleep sleeps n times for d.
func (v *virtual) sleep(n int, d time.Duration) {
	for range n {
		if v.due(v.now) {
			v.yields++
		}
		v.now = v.now.Add(d)
	}
}

// newVirtual returns a loop of a process with so many Ps, which has slept at
// time zero.
func newVirtual(t *testing.T, processors int) *virtual {
	t.Helper()
	before := runtime.GOMAXPROCS(processors)
	v := &virtual{now: time.Unix(0, 0)}
	v.sleep(1, 0)
	t.Cleanup(func() {
		v.end()
		runtime.GOMAXPROCS(before)
	})
	return v
}

// A loop passes through the scheduler at least once in each period of the
// monitor, and hardly more often.
func TestEachPeriodHasAYield(t *testing.T) {
	for _, interval := range []time.Duration{
		10 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 9 * time.Millisecond,
	} {
		v := newVirtual(t, 2)
		v.sleep(2, interval) // it has an interval
		last, longest, yields := v.now, time.Duration(0), 0
		for end := v.now.Add(time.Second); v.now.Before(end); {
			before, at := v.yields, v.now
			v.sleep(1, interval)
			if v.yields > before {
				longest, last, yields = max(longest, at.Sub(last)), at, yields+1
			}
		}
		if longest > monitorPeriod {
			t.Errorf("interval %v: %v without a yield", interval, longest)
		}
		if most := int(time.Second/max(interval, (monitorPeriod-margin)/2)) + 1; yields > most {
			t.Errorf("interval %v: %d yields in a second, want at most %d", interval, yields, most)
		}
		v.end()
	}
}

// A loop that sleeps long leaves its P to the monitor.
func TestLongSleepsNeedNoYield(t *testing.T) {
	v := newVirtual(t, 2)
	v.sleep(100, monitorPeriod)
	if v.yields != 0 {
		t.Errorf("%d yields", v.yields)
	}
	v.sleep(20, time.Millisecond)
	if v.yields == 0 || renewing.Load() != 1 {
		t.Fatalf("%d yields, %d loops counted", v.yields, renewing.Load())
	}
	v.sleep(1, time.Second)
	v.sleep(1, time.Second)
	if n := renewing.Load(); n != 0 {
		t.Errorf("%d loops counted after a long sleep", n)
	}
}

// One P is left for other goroutines.
func TestOnePIsLeft(t *testing.T) {
	only := newVirtual(t, 1)
	if only.sleep(100, time.Millisecond); only.yields != 0 {
		t.Errorf("the loop of a process with one P yields %d times", only.yields)
	}
	first, second, third := newVirtual(t, 3), newVirtual(t, 3), newVirtual(t, 3)
	for range 100 {
		for _, v := range []*virtual{first, second, third} {
			v.sleep(1, time.Millisecond)
		}
	}
	if first.yields == 0 || second.yields == 0 || third.yields != 0 {
		t.Errorf("three loops with three Ps yield %d, %d and %d times", first.yields, second.yields, third.yields)
	}
	first.end()
	if third.sleep(20, time.Millisecond); third.yields == 0 {
		t.Error("a loop does not yield when another one has ended")
	}
	second.end()
	third.end()
	if n := renewing.Load(); n != 0 {
		t.Errorf("%d loops are counted when all have ended", n)
	}
}

// Goroutines that get work need a monitor that is quick.
func TestOffloadedWorkEndsYields(t *testing.T) {
	v := newVirtual(t, 2)
	v.sleep(100, time.Millisecond)
	before := v.yields
	for range 100 {
		Offload()
		v.sleep(1, time.Millisecond)
	}
	if v.yields != before || renewing.Load() != 0 {
		t.Errorf("%d yields while others have work, %d loops counted", v.yields-before, renewing.Load())
	}
	v.sleep(30, time.Millisecond)
	if v.yields == before {
		t.Error("no yield when others have no work any more")
	}
}

func TestYieldKeepsTheLock(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		yield()
		runtime.UnlockOSThread() // must be the only lock: else the thread ends here
	}()
	<-done
}

func TestTimeSliceAllocatesNothing(t *testing.T) {
	v := newVirtual(t, 2)
	if n := testing.AllocsPerRun(100, func() { v.sleep(10, time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
