package simulation

import (
	"errors"
	"iter"
)

// errKilled is the panic that unwinds the tasks of a process that is killed.
var errKilled = errors.New("the process is killed")

// task is a goroutine of a process.
type task struct {
	process   *Process
	number    uint64
	call      func()
	coroutine *coroutine // nil: the task has not begun, or has ended
	timer     timer      // ends a block
	blocked   bool
	late      bool // will run when its timer fires
	killed    bool
	ended     bool
}

// coroutine runs a task after the other: a switch to it costs no decision of
// Go's scheduler, and its stack has grown for the tasks before.
type coroutine struct {
	task  *task
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
}

// coroutine returns one that has no task.
func (r *Runner) coroutine() *coroutine {
	if k := len(r.coroutines); k > 0 {
		c := r.coroutines[k-1]
		r.coroutines = r.coroutines[:k-1]
		return c
	}
	c := new(coroutine)
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		for c.task.run(); yield(struct{}{}); {
			c.task.run()
		}
	})
	return c
}

// run runs the task to its end.
func (t *task) run() {
	defer func() {
		t.ended = true
		if cause := recover(); cause != nil {
			t.process.scheduler.recovered(t, cause)
		}
	}()
	t.call()
}

// Go starts a task.
func (p *Process) Go(f func()) {
	if p.dead {
		return
	}
	s := p.scheduler
	s.number++
	t := &task{process: p, number: s.number, call: f}
	t.timer.call = func() { s.free(t) }
	p.tasks = append(p.tasks, t)
	s.ready = append(s.ready, t)
	p.sweep()
}

// sweep forgets tasks that have ended.
func (p *Process) sweep() {
	if len(p.tasks) < 2*p.swept+16 {
		return
	}
	kept := p.tasks[:0]
	for _, t := range p.tasks {
		if !t.ended {
			kept = append(kept, t)
		}
	}
	clear(p.tasks[len(kept):])
	p.tasks, p.swept = kept, len(kept)
}

// alive returns how many tasks of the process have not ended.
func (p *Process) alive() int {
	n := 0
	for _, t := range p.tasks {
		if !t.ended {
			n++
		}
	}
	return n
}

// unwind ends the tasks of a process wherever they are. Their deferred calls
// run, and find a machine that does nothing any more.
func (p *Process) unwind() {
	s := p.scheduler
	for _, t := range p.tasks {
		if t.ended {
			continue
		}
		if t.killed = true; t.coroutine != nil {
			s.switchTo(t)
		}
		t.ended, t.blocked = true, false
		s.timers.unset(&t.timer)
	}
	p.tasks = nil
}
