package target

import (
	"context"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/sched"
)

// diskCalls are the calls of disks that a control connection makes: an open, a
// flush, a question for a size. A disk may block for any time, and the worker
// owes the initiator keepalives meanwhile. So a goroutine makes a call, one at
// a time in the order of the requests, and the worker takes the result. The
// connection ends when the call has returned: the disk is in use until then.
type diskCalls struct {
	scheduler sched.Scheduler
	signals   *signals  // wake the worker
	current   *diskCall // in flight, or its result is not taken; nil: none
	waiting   []*diskCall
}

// diskCall is one call.
type diskCall struct {
	call  func()       // may block
	take  func() error // takes the result; an error ends the connection
	ended *sched.Event
	panic *contain.Panic // of call; set before ended
}

// maxDiskCalls bounds the calls of a connection that wait for one in flight. An
// initiator has one request at a time, the logout aside.
const maxDiskCalls = 4

// busy reports whether a call is in flight, or its result is not taken.
func (c *diskCalls) busy() bool { return c.current != nil }

// begin has a goroutine run call, after those before it. The worker runs take
// afterwards.
func (c *diskCalls) begin(call func(), take func() error) error {
	x := &diskCall{call: call, take: take, ended: c.scheduler.NewEvent()}
	switch {
	case c.current == nil:
		c.start(x)
	case len(c.waiting) == maxDiskCalls:
		return errRequests
	default:
		c.waiting = append(c.waiting, x)
	}
	return nil
}

func (c *diskCalls) start(x *diskCall) {
	c.current = x
	c.scheduler.Go(func() { c.routineCall(x) })
}

// routineCall makes a call. With another scheduler than sched.Real its panic
// propagates, see worker.guard.
func (c *diskCalls) routineCall(x *diskCall) {
	defer func() {
		if cause := recover(); cause != nil {
			if c.scheduler != sched.Real {
				panic(cause)
			}
			x.panic = contain.Caught(cause)
		}
		x.ended.Set()
		c.signals.recheckSession()
	}()
	x.call()
}

// next returns the call that has ended, once, and starts the next one. It
// returns nil if none has.
func (c *diskCalls) next() *diskCall {
	x := c.current
	if x == nil || !x.ended.IsSet() {
		return nil
	}
	if c.current = nil; len(c.waiting) > 0 {
		c.start(c.waiting[0])
		c.waiting = c.waiting[1:]
	}
	return x
}

// stop drops the calls that wait, and returns when that in flight has ended,
// which it returns.
func (c *diskCalls) stop() *diskCall {
	c.waiting = nil
	if c.current != nil {
		c.scheduler.Wait(context.Background(), -1, c.current.ended)
	}
	return c.next()
}

// reapDiskCalls takes the results of the calls that have ended.
func (w *worker) reapDiskCalls() {
	for w.failure == nil {
		x := w.control.calls.next()
		switch {
		case x == nil:
			return
		case x.panic != nil:
			w.panicked(x.panic)
		default:
			if err := x.take(); err != nil {
				w.fail(err)
			}
			w.carrier.Doorbell()
		}
	}
}

// stopDiskCalls waits for the call in flight, and drops its result.
func (w *worker) stopDiskCalls() {
	if x := w.control.calls.stop(); x != nil && x.panic != nil {
		w.panicked(x.panic)
	}
}
