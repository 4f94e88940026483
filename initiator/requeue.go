package initiator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/backoff"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// reconnectState is the reconnect of a queue that lost its connection. The
// queue keeps its requests until the loss timeout, and resends them from the
// beginning. It does not matter whether the target executed them before the
// loss: none was answered, and each still holds its blocks. The queue keeps its
// memory and its VI, which connects again: all access to the memory has ended
// with the connection, see quarantine for the exception.
type reconnectState struct {
	timeout time.Duration
	until   time.Time // end of the loss timeout; zero is no limit
	expired bool      // until has passed: requests fail
	over    bool      // the queue does not reconnect, or not any more
	cancel  context.CancelFunc
	pending *redialer // nil without
}

// begin starts a redialer. Requests wait for it up to the loss timeout.
func (a *reconnectState) begin(r *redialer, timeout time.Duration) {
	scheduler := r.device.cfg.Scheduler
	ctx, cancel := scheduler.WithCancel(context.Background())
	*a = reconnectState{timeout: timeout, cancel: cancel, pending: r}
	if timeout < Forever {
		a.until = scheduler.Now().Add(timeout)
	}
	r.ended = scheduler.NewEvent()
	scheduler.Go(func() { r.routineReconnect(ctx) })
}

// waits reports whether requests of a queue without a connection wait for one.
func (a *reconnectState) waits() bool { return !a.over && !a.expired }

// wait returns how long the owner may sleep, negative for no limit, or false if
// the loss timeout may have passed, which expire finds out.
func (a *reconnectState) wait() (time.Duration, bool) {
	if a.until.IsZero() {
		return -1, true
	}
	d := a.until.Sub(a.pending.device.cfg.Scheduler.Now())
	return d, d > 0
}

// expire reports whether the loss timeout has passed since the last call. It
// does not run while the target is there, unless that refuses the connection of
// the queue for good. Afterwards the timeout has passed or ends later than now.
func (a *reconnectState) expire() bool {
	if a.until.IsZero() {
		return false
	}
	d, before := a.pending.device, a.expired
	last, there := d.reconnector.presence()
	now := d.cfg.Scheduler.Now()
	if there {
		if refused := a.pending.refused.Load(); refused == nil {
			last = now
		} else if refused.After(last) {
			last = *refused
		}
	}
	if again := last.Add(a.timeout); again.After(a.until) {
		a.until = again
	}
	a.expired = !now.Before(a.until)
	return a.expired && !before
}

// ready reports whether the result of the redialer is there.
func (a *reconnectState) ready() bool { return a.pending != nil && a.pending.ready.Load() }

// poll returns the result of the redialer if it is there.
func (a *reconnectState) poll() (reconnectResult, bool) {
	if !a.ready() {
		return reconnectResult{}, false
	}
	a.pending.device.cfg.Scheduler.Wait(context.Background(), -1, a.pending.ended) // it rings, no more
	back := a.pending.result
	a.cancel()
	*a = reconnectState{}
	return back, true
}

// stop stops the redialer; the queue's owner then owns the carrier. The error
// is that of a target that may access memory after a failed attempt.
func (a *reconnectState) stop() error {
	if a.pending == nil {
		return nil
	}
	a.cancel()
	a.pending.device.cfg.Scheduler.Wait(context.Background(), -1, a.pending.ended)
	inside := a.pending.result.inside
	*a = reconnectState{}
	return inside
}

// reconnectResult is the new session and login response of a queue, or why its
// reconnect failed.
type reconnectResult struct {
	path   *path
	answer wire.LoginResponse
	err    error
	inside error // of a target that may access memory after a failed attempt
}

// redialer connects a queue that lost its connection, over another path of the
// session, or to the next session. Its
// goroutine alone uses it, and the carrier, until the result is there.
type redialer struct {
	device  *Device
	carrier *carrier.Carrier
	bell    sched.Bell // of the queue's owner
	lost    *path
	moving  bool // nothing was in flight on lost
	index   uint16
	slots   int
	limits  limits
	kept    []uint32 // receives that hold data
	inside  error    // of Disconnect, after failed attempts
	result  reconnectResult
	ready   atomic.Bool               // the result is there
	ended   *sched.Event              // the goroutine has ended
	refused atomic.Pointer[time.Time] // since when every attempt is refused for good; nil: the last was not
}

// routineReconnect connects, sets the result and wakes the owner of the queue.
func (r *redialer) routineReconnect(ctx context.Context) {
	defer r.ended.Set()
	err := r.device.cfg.guard("panic: the queue does not reconnect", func() error {
		r.result = r.reconnect(ctx)
		return nil
	})
	if err != nil {
		r.result = reconnectResult{err: err, inside: r.inside}
	}
	r.ready.Store(true)
	r.bell.Ring() // before ended is set: the owner closes the bell after that
}

// reconnect connects over another path or to the next session. If that is lost
// meanwhile, it waits for the one after it.
func (r *redialer) reconnect(ctx context.Context) reconnectResult {
	k, cfg := r.device.reconnector, &r.device.cfg
	pauses := backoff.Backoff{Random: cfg.Random}
	for failed := 0; ; failed++ {
		p, err := k.awaitPath(ctx, r)
		if err != nil {
			return reconnectResult{err: err, inside: r.inside}
		}
		s, keys := p.s, p.s.keys.Load()
		answer, err := r.relogin(ctx, p, failed)
		if err == nil {
			return reconnectResult{path: p, answer: answer, inside: r.inside}
		}
		r.noteRefusal(isFinal(err, r.index, s))
		cfg.Log.Debug("connection not restored", "event", "reconnect_failed", "conn", r.index, "error", err)
		r.inside = errors.Join(r.inside, r.carrier.Disconnect())
		replaced := s.keys.Load() != keys // it joined by others
		if !replaced && s.noteForgotten(err) || s.err() != nil {
			r.lost, r.moving = p, false
			continue
		}
		cfg.Scheduler.Wait(ctx, pauses.Next(cfg.ReconnectDelay), s.ended, k.ended)
	}
}

// noteRefusal notes whether an attempt was refused for good.
func (r *redialer) noteRefusal(final bool) {
	switch {
	case !final:
		r.refused.Store(nil)
	case r.refused.Load() == nil:
		now := r.device.cfg.Scheduler.Now()
		r.refused.Store(&now)
	}
}

// relogin connects over a path, with the limits that the queue has.
func (r *redialer) relogin(ctx context.Context, p *path, failed int) (wire.LoginResponse, error) {
	ctx, cancel := r.device.cfg.Scheduler.WithTimeout(ctx, r.device.cfg.attemptTime(failed))
	defer cancel()
	if err := r.carrier.Renew(r.kept); err != nil {
		return wire.LoginResponse{}, err
	}
	ask := p.loginRequest(wire.RoleIO, r.index, r.slots)
	ask.InlineMax, ask.MaxIO = r.limits.inline, r.limits.maxIO
	return p.logIn(ctx, r.carrier, ask)
}

// armDisconnected is Arm of a queue without a connection. Two events ring the
// bell of its owner: the redialer has its result, or a request that waits has
// its range. The loss timeout has a time, and memory that the target may still
// access is polled. Everything else is the owner's own.
//
// No wake-up is lost. Either event is visible before its ring, and the owner
// drains the bell before it looks for them: a ring that it drained told of what
// it sees now, and any later one makes the descriptor readable.
func (q *Queue) armDisconnected() (time.Duration, bool) {
	if q.bell != nil {
		q.bell.Drain()
	}
	if !q.requests.finished.Empty() || q.requests.overlaps.granted.Load() != 0 || q.reconnect.ready() {
		return 0, false
	}
	d := time.Duration(-1)
	if q.reconnect.waits() && q.requests.held != 0 {
		var ok bool
		if d, ok = q.reconnect.wait(); !ok {
			return 0, false
		}
	}
	return q.payload.poll(d, q.requests.held), true
}

// pollReconnect resumes the queue if it is connected again, or applies the loss
// timeout.
func (q *Queue) pollReconnect() {
	if back, ok := q.reconnect.poll(); ok {
		q.quarantine(back.inside)
		if back.err == nil {
			back.err = q.resumeQueue(&back)
		}
		if back.err != nil {
			q.reconnect.over = true
			q.requests.abandon()
		}
		return
	}
	if q.reconnect.expire() {
		q.requests.abandon()
	}
}

// resumeQueue resumes the queue on its new connection.
func (q *Queue) resumeQueue(back *reconnectResult) error {
	// The size of the receives.
	back.answer.InlineMax = min(back.answer.InlineMax, q.payload.limits.inline)
	err := q.slots.postDeferred(q.carrier)
	if err == nil {
		err = q.accept(&back.answer, len(q.slots.slots))
	}
	if err != nil {
		q.quarantine(q.carrier.Disconnect())
		return err
	}
	q.payload.chooseInline()
	if s := back.path.s; s.conflicts != q.session.conflicts {
		q.requests.abandon() // they are older than what the other client wrote
	}
	q.usePath(back.path)
	q.requests.overlaps.setBell(nil)
	q.export, q.failure, q.moving = q.session.export.Export, nil, false
	q.reconnects++
	q.publish() // the owner may have no reason to sleep for long
	q.resume()
	q.Kick()
	return nil
}
