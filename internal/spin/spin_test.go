package spin

import (
	"testing"
	"time"
)

// alone returns a spinner that others of the machine do not end, however long
// they keep it from looking.
func alone(budget time.Duration) Spinner {
	s := New(budget)
	s.maximumSpinning, s.maximumGap, s.allowance = 1, 1<<62, 1<<62
	return s
}

// spinOnce spins until the given look finds work; 0 never does. It returns how
// often it polled.
func spinOnce(s *Spinner, work int) (polls int, started bool) {
	if !s.Start(false, 0) {
		return 0, false
	}
	for s.Continue() {
		if polls++; polls == work {
			s.Hit()
			break
		}
	}
	return polls, true
}

func wantQuiet(t *testing.T) {
	t.Helper()
	if n := spinning.Load(); n != 0 {
		t.Errorf("%d loops spin, none should", n)
	}
}

func TestNoBudgetNeverSpins(t *testing.T) {
	for _, budget := range []time.Duration{0, -1} {
		s := New(budget)
		if _, started := spinOnce(&s, 1); started {
			t.Errorf("a spinner with budget %v spins", budget)
		}
	}
	wantQuiet(t)
}

func TestSpinThatPaysIsTriedAgain(t *testing.T) {
	s := alone(time.Hour)
	for range 100 {
		if polls, started := spinOnce(&s, 1); !started || polls != 1 {
			t.Fatalf("polled %d times, started %v", polls, started)
		}
	}
	wantQuiet(t)
}

func TestMissesAreFollowedByMoreSleeps(t *testing.T) {
	s := alone(1) // over at the first look that takes a nanosecond
	for miss := 1; miss <= maximumMisses+2; miss++ {
		if _, started := spinOnce(&s, 0); !started {
			t.Fatalf("miss %d: did not spin", miss)
		}
		sleeps := 0
		for s.skip > 0 {
			if _, started := spinOnce(&s, 0); started {
				t.Fatalf("miss %d: spins although %d sleeps are due", miss, s.skip)
			}
			sleeps++
		}
		if want := 1<<min(miss, maximumMisses) - 1; sleeps != want {
			t.Errorf("miss %d: %d sleeps follow, want %d", miss, sleeps, want)
		}
	}
	wantQuiet(t)
}

// A poll that takes too long shared the processor: the spin is over, and found
// nothing.
func TestSpinEndsOnSharedProcessor(t *testing.T) {
	s := alone(time.Hour)
	s.maximumGap = 0
	if polls, started := spinOnce(&s, 1); !started || polls != 0 || s.skip != 1 {
		t.Errorf("started %v, polled %d times, sleeps %d times", started, polls, s.skip)
	}
	wantQuiet(t)
}

func TestOnlySoManyLoopsSpin(t *testing.T) {
	a, b := alone(time.Hour), alone(time.Hour)
	if !a.Start(false, 0) || !a.Continue() {
		t.Fatal("the first loop does not spin")
	}
	if b.Start(false, 0) {
		t.Error("a second loop spins beside the first")
	}
	a.Hit()
	if !b.Start(false, 0) || !b.Continue() {
		t.Error("the second loop does not spin after the first ended")
	}
	b.Hit()
	wantQuiet(t)
}

func TestSpinningAllocatesNothing(t *testing.T) {
	s := alone(time.Hour)
	if n := testing.AllocsPerRun(100, func() { spinOnce(&s, 3) }); n != 0 {
		t.Errorf("a spin allocates %v times", n)
	}
}

// TestSpinsAreBrief: a spin in the middle of work, or where another loop ran
// out of work since the last one, has a quarter of the time, and the next one
// all of it again.
func TestSpinsAreBrief(t *testing.T) {
	const budget = 40 * time.Hour
	s, other := alone(budget), alone(budget)
	for _, c := range []struct{ amidst, others bool }{{}, {amidst: true}, {}, {others: true}, {}, {true, true}, {}} {
		for _, passed := range []time.Duration{budget/briefDivisor - time.Hour, budget/briefDivisor + time.Hour} {
			spinOnce(&s, 1)
			if c.others {
				spinOnce(&other, 1)
			}
			if !s.Start(c.amidst, 0) || !s.Continue() {
				t.Fatal("does not spin")
			}
			s.start = s.start.Add(-passed)
			if goes, want := s.Continue(), !c.amidst && !c.others || passed < budget/briefDivisor; goes != want {
				t.Errorf("%+v: after %v of %v: spins on: %v", c, passed, budget, goes)
			} else if goes {
				s.Hit()
			}
			s.misses, s.skip = 0, 0
		}
	}
	wantQuiet(t)
}

// Spins that find nothing take a tenth of the time.
func TestMissesAreBounded(t *testing.T) {
	const budget = time.Hour
	s := alone(budget)
	s.allowance = missBurst * budget
	miss := func() {
		s.misses, s.skip = 0, 0
		if !s.Start(false, 0) || !s.Continue() {
			t.Fatalf("does not spin, with %v allowed", s.allowance)
		}
		s.start = s.start.Add(-budget - time.Second)
		if s.Continue() {
			t.Fatal("spins beyond its budget")
		}
	}
	for range missBurst {
		miss()
	}
	if n := s.Spent(); n < missBurst*budget || n > (missBurst+1)*budget {
		t.Errorf("%v spent in %d spins of %v", n, missBurst, budget)
	}
	s.skip = 0
	if s.Start(false, 0) {
		t.Fatalf("spins again after %d spins that find nothing", missBurst)
	}
	for _, c := range []struct {
		pass  time.Duration
		spins int
	}{{missShare * budget, 1}, {3 * missShare * budget, 3}, {100 * missShare * budget, missBurst}} {
		s.idle = s.idle.Add(-c.pass)
		for range c.spins {
			miss()
		}
		s.skip = 0
		if s.Start(false, 0) {
			t.Fatalf("more than %d spins that find nothing after %v", c.spins, c.pass)
		}
	}
	wantQuiet(t)
}
