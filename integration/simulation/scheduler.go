package simulation

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"
)

// epoch is the time at which a run begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Scheduler runs tasks, one at a time, in virtual time. Its seed alone
// decides which of those that can run is next, so that a run can be repeated.
// Time stands still while a task runs, advances a little between two, and jumps
// to the next timer when none can run.
//
// One goroutine uses a scheduler; those of its tasks count as that one.
type Scheduler struct {
	runner  *Runner
	now     time.Duration // since epoch
	random  *rand.Rand
	timers  timers
	ready   []*task
	current *task // nil: the caller of run, or a timer
	files   []*file
	number  uint64
	steps   uint64
	trace   Trace
	failure error // of the run, the first
}

// newScheduler returns a scheduler with nothing to run.
func newScheduler(r *Runner, seed uint64) *Scheduler {
	return &Scheduler{runner: r, random: rand.New(rand.NewPCG(seed, 1)), trace: newTrace()}
}

// fail ends the run with an error.
func (s *Scheduler) fail(format string, args ...any) {
	if s.failure == nil {
		s.failure = fmt.Errorf("at %v: %w", s.now, fmt.Errorf(format, args...))
	}
}

// run runs tasks until done returns true, the limit of virtual time is reached,
// or nothing can run any more. It returns false unless done returned true.
func (s *Scheduler) run(limit time.Duration, done func() bool) bool {
	for !done() {
		switch {
		case s.failure != nil:
			return false
		case s.timers.next() <= s.now:
			s.timers.fire()
		case len(s.ready) > 0:
			s.resume()
		case s.timers.next() > limit:
			return false
		default:
			s.now = s.timers.next()
		}
	}
	return true
}

// stepLimit bounds a run: one that ends takes a part of it.
const stepLimit = 2_000_000

// slice bounds by how much time advances after a task has run.
const slice = 512 * time.Nanosecond

// resume lets a task run that can.
func (s *Scheduler) resume() {
	i := 0
	if len(s.ready) > 1 {
		i = s.random.IntN(len(s.ready))
	}
	t := s.ready[i]
	last := len(s.ready) - 1
	s.ready[i] = s.ready[last]
	s.ready[last] = nil
	s.ready = s.ready[:last]
	if t.ended {
		return
	}
	if t.process.stopped {
		t.process.held = append(t.process.held, t)
		return
	}
	if s.steps++; s.steps == stepLimit {
		s.fail("%s: a task runs again and again: it waits for nothing", t.process.name)
	}
	s.trace.add(t.number, uint64(s.now))
	s.switchTo(t)
	s.now += time.Duration(1 + s.random.Uint64()%uint64(slice))
}

// switchTo runs a task until it blocks or ends.
func (s *Scheduler) switchTo(t *task) {
	before := s.current
	s.current = t
	c := t.coroutine
	if c == nil {
		c = s.runner.coroutine()
		c.task, t.coroutine = t, c
	}
	c.next()
	if t.ended {
		c.task, t.coroutine = nil, nil
		s.runner.coroutines = append(s.runner.coroutines, c)
	}
	s.current = before
}

// After calls f at a later time, on no task: f does not block.
func (s *Scheduler) After(d time.Duration, f func()) *timer {
	t := &timer{call: f}
	s.set(t, d)
	return t
}

// set sets a timer.
func (s *Scheduler) set(t *timer, d time.Duration) {
	s.timers.set(t, s.now+max(d, 0), s.random.Uint32())
}

// between returns a random duration that is not less than low, and less than
// high.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Uint64N(uint64(high-low)))
}

// lateness is how much later a task may run than it could: a machine has other
// things to do. One of lateOnes wake-ups is late.
const (
	lateness = 100 * time.Microsecond
	lateOnes = 16
)

// wake lets a task run that is blocked.
func (s *Scheduler) wake(t *task) {
	if !t.blocked || t.late || t.ended {
		return
	}
	if s.random.Uint32()%lateOnes == 0 {
		t.late = true
		s.set(&t.timer, between(s.random, 0, lateness))
		return
	}
	s.free(t)
}

// free lets a task run now.
func (s *Scheduler) free(t *task) {
	if !t.blocked || t.ended {
		return
	}
	t.blocked, t.late = false, false
	s.timers.unset(&t.timer)
	s.ready = append(s.ready, t)
}

// block blocks the task that calls it until one of the lists is woken or d has
// passed; d < 0 is no limit.
func (s *Scheduler) block(d time.Duration, lists ...*waiters) {
	t := s.current
	if t == nil {
		panic("simulation: a timer blocks")
	}
	if t.process.dead {
		panic(errKilled)
	}
	for _, l := range lists {
		l.tasks = append(l.tasks, t)
	}
	if d >= 0 {
		s.set(&t.timer, d)
	}
	t.blocked = true
	t.coroutine.yield(struct{}{})
	if t.killed {
		panic(errKilled)
	}
	for _, l := range lists {
		l.remove(t)
	}
}

// waiters are the tasks that wait for something.
type waiters struct{ tasks []*task }

func (w *waiters) remove(t *task) {
	if i := slices.Index(w.tasks, t); i >= 0 {
		w.tasks = slices.Delete(w.tasks, i, i+1)
	}
}

// wake lets all of them run.
func (w *waiters) wake(s *Scheduler) {
	for _, t := range w.tasks {
		s.wake(t)
	}
}

// recovered takes over a panic of a task: the run fails.
func (s *Scheduler) recovered(t *task, cause any) {
	if cause != errKilled {
		s.fail("%s: panic: %v\n%s", t.process.name, cause, debug.Stack())
	}
}
