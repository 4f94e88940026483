package simulation

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runAll runs what there is, to its end.
func runAll(t *testing.T, s *Scheduler) {
	t.Helper()
	if s.run(time.Hour, func() bool { return false }) || s.failure != nil {
		t.Fatal(s.failure)
	}
}

// newRunner returns a runner that ends with the test.
func newRunner(t *testing.T) *Runner {
	t.Helper()
	r := NewRunner()
	t.Cleanup(r.Close)
	return r
}

// TestOrderIsTheSeeds: tasks that can run at the same time run in an order that
// the seed determines, and every order happens.
func TestOrderIsTheSeeds(t *testing.T) {
	runner := newRunner(t)
	order := func(seed uint64) (string, Trace) {
		s := newScheduler(runner, seed)
		p := s.newProcess("p")
		var b strings.Builder
		for _, name := range []string{"a", "b", "c"} {
			p.Go(func() {
				p.spins()
				b.WriteString(name)
			})
		}
		runAll(t, s)
		return b.String(), s.trace
	}
	seen := make(map[string]bool)
	for seed := range uint64(100) {
		one, trace := order(seed)
		two, again := order(seed)
		if one != two || trace != again {
			t.Fatalf("seed %d: %q, then %q", seed, one, two)
		}
		seen[one] = true
	}
	if len(seen) != 6 {
		t.Errorf("orders: %v", seen)
	}
}

// TestWaitEnds: every way in which a Wait and a Poll end, at the right time.
func TestWaitEnds(t *testing.T) {
	s := newScheduler(newRunner(t), 1)
	p := s.newProcess("p")
	e, late := p.NewEvent(), p.NewEvent()
	b, err := p.NewBell()
	if err != nil {
		t.Fatal(err)
	}
	var ends []string
	at := func(name string, from, to time.Duration) {
		if now := s.now; now < from || now > to {
			t.Errorf("%s ended at %v, not from %v to %v", name, now, from, to)
		}
		ends = append(ends, name)
	}
	ctx, cancel := p.WithCancel(context.Background())
	below, cancelBelow := context.WithCancelCause(ctx) // as the via package does
	defer cancelBelow(nil)
	timed, cancelTimed := p.WithTimeout(below, 30*time.Millisecond)
	defer cancelTimed()
	p.Go(func() { p.Wait(context.Background(), 10*time.Millisecond, late, nil); at("time", 10e6, 12e6) })
	p.Go(func() { p.Wait(context.Background(), -1, late, e); at("event", 20e6, 22e6) })
	p.Go(func() { p.Wait(timed, -1, late); at("deadline", 30e6, 32e6) })
	p.Go(func() { p.Wait(below, -1, late); at("cancel", 40e6, 42e6) })
	p.Go(func() {
		fds := []unix.PollFd{{Fd: int32(b.FD()), Events: unix.POLLIN}}
		for fds[0].Revents == 0 {
			_ = p.Poll(fds, -1)
		}
		at("bell", 50e6, 52e6)
		b.Drain()
		_ = p.Poll(fds, time.Millisecond)
		if fds[0].Revents != 0 {
			t.Error("a drained bell is readable")
		}
	})
	s.After(20*time.Millisecond, e.Set)
	s.After(40*time.Millisecond, cancel)
	s.After(50*time.Millisecond, b.Ring)
	runAll(t, s)
	if want := []string{"time", "event", "deadline", "cancel", "bell"}; !slices.Equal(ends, want) {
		t.Errorf("%v, want %v", ends, want)
	}
	if !errors.Is(timed.Err(), context.DeadlineExceeded) || !errors.Is(below.Err(), context.Canceled) {
		t.Errorf("%v, %v", timed.Err(), below.Err())
	}
}

// TestStopAndKill: a stopped process does nothing until it continues, and a
// killed one does nothing any more but unwind.
func TestStopAndKill(t *testing.T) {
	s := newScheduler(newRunner(t), 1)
	p, q := s.newProcess("p"), s.newProcess("q")
	steps, unwound := 0, 0
	p.Go(func() {
		defer func() { unwound++; p.Wait(context.Background(), -1) }()
		for {
			p.Wait(context.Background(), time.Millisecond)
			steps++
		}
	})
	var during [3]int
	q.Go(func() {
		nap := func() { q.Wait(context.Background(), 10500*time.Microsecond) }
		nap()
		p.pause()
		before := steps
		nap()
		during[0] = steps - before
		p.resume()
		nap()
		during[1] = steps - before
		p.kill()
		before = steps
		nap()
		during[2] = steps - before
	})
	runAll(t, s)
	if during[0] != 0 || during[1] < 8 || during[2] != 0 || unwound != 1 || p.alive() != 0 {
		t.Errorf("steps %v, %d unwound, %d alive", during, unwound, p.alive())
	}
}

// TestPanicFailsTheRun: a panic of a task is the failure of the run.
func TestPanicFailsTheRun(t *testing.T) {
	s := newScheduler(newRunner(t), 1)
	s.newProcess("p").Go(func() { panic("broken") })
	s.run(time.Hour, func() bool { return false })
	if s.failure == nil || !strings.Contains(s.failure.Error(), "broken") {
		t.Errorf("failure: %v", s.failure)
	}
}
