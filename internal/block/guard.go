package block

import (
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/contain"
)

// longestHold bounds the range that a request without payload holds at a time,
// in bytes: a longer one is executed in parts.
const longestHold = PayloadLimit

// parked is a task that waits for its range.
type parked struct {
	Wait
	executor *Executor
	task     task
}

// run executes a task, with its range held if there is a guard. It returns
// false if the task waits for its range; then it belongs to the ranges.
func (e *Executor) run(t *task) bool {
	r := t.r
	if t.aborts != t.queue.aborts.Load() && t.done == 0 {
		if t.held {
			off, n := r.part(0)
			e.ranges.Release(off, n, r.Op != Read)
		}
		r.Err = errDropped
		return true
	}
	if e.ranges == nil || !r.touchesData() {
		r.Err = e.call(r)
		return true
	}
	for {
		off, n := r.part(t.done)
		if !t.held && !e.acquire(t, off, n) {
			return false
		}
		err := e.execute(r, off, n)
		e.ranges.Release(off, n, r.Op != Read)
		t.held = false
		if t.done += n; err != nil || t.done == r.Length {
			r.Err = err
			return true
		}
	}
}

// execute executes a part of a request, or all of it. The last part makes all
// of them durable.
func (e *Executor) execute(r *Request, off, n int64) error {
	if n == r.Length {
		return e.call(r)
	}
	part := *r
	part.Offset, part.Length = off, n
	if off+n < r.Offset+r.Length {
		part.Flags &^= FUA
	}
	return e.call(&part)
}

// call executes a request on a worker and turns a panic into its EIO.
func (e *Executor) call(r *Request) (err error) {
	sync := r.Op == Flush || r.Flags&FUA != 0
	if sync {
		if err := e.panicked.Err(); err != nil {
			return err
		}
	}
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		p := contain.Caught(value)
		p.Log(nil, "panic: a request of a disk fails", "op", r.Op, "offset", r.Offset, "length", r.Length)
		if err = fmt.Errorf("%w: %w", p, syscall.EIO); sync {
			err = e.panicked.Fail(err)
		}
	}()
	return e.engine.Execute(r)
}

// acquire holds a range for a task, or parks the task.
func (e *Executor) acquire(t *task, off, n int64) bool {
	write := t.r.Op != Read
	if e.ranges.TryAcquire(off, n, write) {
		return true
	}
	p := e.park(t)
	if !e.ranges.Acquire(&p.Wait, off, n, write) {
		return false
	}
	e.mu.Lock()
	e.unparkLocked(p)
	e.mu.Unlock()
	return true
}

// park returns a place for a task to wait in.
func (e *Executor) park(t *task) *parked {
	defer contain.Shared()
	e.mu.Lock()
	defer e.mu.Unlock()
	var p *parked
	if k := len(e.parking); k > 0 {
		p, e.parking = e.parking[k-1], e.parking[:k-1]
	} else {
		p = &parked{executor: e}
		p.Granted = p.granted
	}
	p.task = *t
	return p
}

// +checklocks:e.mu
func (e *Executor) unparkLocked(p *parked) {
	p.task = task{}
	e.parking = append(e.parking, p)
}

// granted queues the task again: its range is held.
func (p *parked) granted() {
	defer contain.Shared()
	e := p.executor
	e.mu.Lock()
	p.task.held = true
	e.enqueue(p.task)
	e.unparkLocked(p)
	e.addedLocked()
	e.mu.Unlock()
}

// touchesData reports whether a request reads or changes what is stored.
func (r *Request) touchesData() bool {
	return r.Op == Read || r.Op == Write || r.Op == Trim || r.Op == WriteZeroes
}

// part returns the range to execute next after the first done bytes of a
// request. A part ends between two units.
func (r *Request) part(done int64) (off, n int64) {
	off, n = r.Offset+done, r.Length-done
	if n > longestHold && r.Op != Read && r.Op != Write {
		n = (off+longestHold)&^(AtomicUnit-1) - off
	}
	return off, n
}
