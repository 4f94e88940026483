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
	began   time.Time
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
	*a = reconnectState{timeout: timeout, began: scheduler.Now(), cancel: cancel, pending: r}
	if timeout < Forever {
		a.until = a.began.Add(timeout)
	}
	r.ended = scheduler.NewEvent()
	scheduler.Go(func() { r.routineReconnect(ctx) })
}

// waits reports whether requests of a queue without a connection wait for one.
func (a *reconnectState) waits() bool { return !a.over && !a.expired }

// expire reports whether the loss timeout has passed since the last call. It
// does not run while the target is there, unless that refuses the connection of
// the queue for good.
func (a *reconnectState) expire() bool {
	if a.until.IsZero() {
		return false
	}
	d, before := a.pending.device, a.expired
	last, there := d.reconnector.presence()
	now := d.cfg.Scheduler.Now()
	if there && !a.pending.final.Load() {
		last = now
	}
	if again := last.Add(a.timeout); again.After(a.until) {
		a.until = again
	}
	a.expired = now.After(a.until)
	return a.expired && !before
}

// poll returns the result of the redialer if it is there.
func (a *reconnectState) poll() (reconnectResult, bool) {
	if a.pending == nil || !a.pending.ended.IsSet() {
		return reconnectResult{}, false
	}
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

// reconnectPoll is the longest interval at which the owner of a disconnected
// queue polls the reconnect.
const reconnectPoll = 10 * time.Millisecond

// pollAfter returns the interval of a poll for what has been awaited for some
// time: it adds little to a short wait, and costs little during a long one.
func pollAfter(waited time.Duration) time.Duration {
	return min(max(waited/16, time.Millisecond), reconnectPoll)
}

// redialer connects a queue that lost its connection, over another path of the
// session, or to the next session. Its
// goroutine alone uses it, and the carrier, until the result is there.
type redialer struct {
	device  *Device
	carrier *carrier.Carrier
	lost    *path
	moving  bool // nothing was in flight on lost
	index   uint16
	slots   int
	limits  limits
	kept    []uint32 // receives that hold data
	inside  error    // of Disconnect, after failed attempts
	result  reconnectResult
	ended   *sched.Event // the result is there
	final   atomic.Bool  // the last attempt was refused, for good
}

// routineReconnect connects and sets the result.
func (r *redialer) routineReconnect(ctx context.Context) {
	defer r.ended.Set()
	err := r.device.cfg.guard("panic: the queue does not reconnect", func() error {
		r.result = r.reconnect(ctx)
		return nil
	})
	if err != nil {
		r.result = reconnectResult{err: err, inside: r.inside}
	}
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
		r.final.Store(isFinal(err, r.index, s))
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
	q.export, q.failure, q.moving = q.session.export.Export, nil, false
	q.reconnects++
	q.publish() // the owner may have no reason to sleep for long
	q.resume()
	q.Kick()
	return nil
}
