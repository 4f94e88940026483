package simulation

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/sched"
)

// Process is a process of the simulation: tasks that are stopped, continued and
// killed together. It is the [sched.Scheduler] of the code that runs in it.
type Process struct {
	scheduler *Scheduler
	name      string
	tasks     []*task
	swept     int     // tasks that were left by the last sweep
	held      []*task // could run, but the process is stopped
	events    map[*sched.Event]*waiters
	loops     [loopsPerProcess]simLoop
	stopped   bool
	dead      bool
	onKill    []func() // what the machine does when the process is killed
	onResume  []func() // what waits for the process to continue; each once
}

var _ sched.Scheduler = (*Process)(nil)

// newProcess returns a process without tasks.
func (s *Scheduler) newProcess(name string) *Process {
	return &Process{scheduler: s, name: name, events: make(map[*sched.Event]*waiters)}
}

// kill ends the process at once, as SIGKILL does.
func (p *Process) kill() {
	if p.dead {
		return
	}
	p.dead = true
	p.unwind()
	for _, f := range p.onKill {
		f()
	}
	p.onKill, p.onResume, p.held = nil, nil, nil
}

// pause stops all tasks of the process, as SIGSTOP does.
func (p *Process) pause() { p.stopped = true }

// resume continues a stopped process.
func (p *Process) resume() {
	if !p.stopped {
		return
	}
	p.stopped = false
	p.scheduler.ready = append(p.scheduler.ready, p.held...)
	p.held = p.held[:0]
	waiting := p.onResume
	p.onResume = nil
	for _, f := range waiting {
		f()
	}
}

// Now implements [sched.Scheduler], as do the other methods of Process below.
func (p *Process) Now() time.Time { return epoch.Add(p.scheduler.now) }

// NewEvent returns an event that wakes the tasks in Wait.
func (p *Process) NewEvent() *sched.Event {
	w := new(waiters)
	e := sched.NewEvent(func() { w.wake(p.scheduler) })
	p.events[e] = w
	return e
}

// Wait blocks the task until an event is set, ctx is done, or d has passed.
func (p *Process) Wait(ctx context.Context, d time.Duration, events ...*sched.Event) {
	s := p.scheduler
	end := s.now + d
	scope := scopeOf(ctx)
	for {
		var lists [sched.MaxEvents + 1]*waiters
		n := 0
		for _, e := range events {
			if e == nil {
				continue
			}
			if e.IsSet() {
				p.spins()
				return
			}
			w := p.events[e]
			if w == nil {
				panic(fmt.Sprintf("simulation: %s waits for an event of another scheduler", p.name))
			}
			lists[n] = w
			n++
		}
		if scope != nil {
			lists[n] = &scope.waiting
			n++
		}
		left := time.Duration(-1)
		if d >= 0 {
			left = end - s.now
		}
		if ctx.Err() != nil || d >= 0 && left <= 0 {
			p.spins()
			return
		}
		s.block(left, lists[:n]...)
	}
}

// spins lets other tasks run although the caller need not wait: one that never
// waits takes time, and is found by the limit of the run.
func (p *Process) spins() { p.scheduler.block(0) }

// Poll blocks the task until a descriptor is readable, or d has passed.
func (p *Process) Poll(fds []unix.PollFd, d time.Duration) error {
	s := p.scheduler
	if s.look(fds) || d == 0 {
		p.spins()
		return nil
	}
	var few [16]*waiters
	lists := few[:0]
	for i := range fds {
		lists = append(lists, &s.file(fds[i].Fd).waiting)
	}
	s.block(d, lists...)
	s.look(fds)
	return nil
}

// WithTimeout returns a context with a deadline in virtual time.
func (p *Process) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	c := p.newScope(ctx)
	c.deadline, c.timed = p.Now().Add(d), true
	if until, ok := ctx.Deadline(); ok && until.Before(c.deadline) {
		c.deadline = until
	}
	if c.err != nil {
		return c, func() {} // the parent has ended
	}
	c.timer = p.scheduler.After(c.deadline.Sub(p.Now()), func() { c.end(context.DeadlineExceeded) })
	return c, func() { c.end(context.Canceled) }
}

// WithCancel returns a context that ends with its cancel function or parent.
func (p *Process) WithCancel(ctx context.Context) (context.Context, context.CancelFunc) {
	c := p.newScope(ctx)
	return c, func() { c.end(context.Canceled) }
}

// NewBell returns a bell.
func (p *Process) NewBell() (sched.Bell, error) { return p.scheduler.newFile(p), nil }
