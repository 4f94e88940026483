package initiator

import (
	"context"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// absence is the time that a queue has no connection and waits for one. Its requests
// wait too, up to a limit, and are sent again from the beginning: none of them was
// answered, so that it makes no difference whether the target executed them before
// it was lost. Their memory stays what it was, and so does the VI, which connects
// again: all access to it has ended with the connection.
//
// While routineReturn runs the connection is its own, and the queue's owner leaves it
// alone.
type absence struct {
	until  time.Time // requests wait; zero is for ever
	over   bool      // it is later: requests fail
	cancel context.CancelFunc
	result chan returned // of routineReturn, of one element; nil without
}

// returned is a connection that stands again, or why there will be none.
type returned struct {
	session *session
	answer  wire.LoginResponse
	err     error
}

// returnLook is how often the owner of a queue that waits looks whether it still has
// to.
const returnLook = 10 * time.Millisecond

// depart begins an absence: the connection is gone.
func (q *Queue) depart() {
	q.absence = absence{}
	if t := q.device.cfg.LossTimeout; t < Forever {
		q.absence.until = time.Now().Add(t)
	}
	q.waiting.clear()
	for i := range q.ops {
		if o := &q.ops[i]; o.request != nil {
			r := o.request
			r.Extents = r.Extents[:0]
			*o = op{request: r, mark: o.mark}
			q.waiting.push(uint16(i))
		}
	}
	var kept []uint32
	for i := range q.slots {
		if q.slots[i].held {
			kept = append(kept, q.slots[i].receive)
		}
	}
	q.session.lose()
	ctx, cancel := context.WithCancel(context.Background())
	q.absence.cancel, q.absence.result = cancel, make(chan returned, 1)
	go q.routineReturn(ctx, q.session, kept, q.absence.result)
}

// routineReturn connects the queue to the next session, and to the one after that if
// the former ends meanwhile.
func (q *Queue) routineReturn(ctx context.Context, lost *session, kept []uint32, result chan<- returned) {
	k, cfg := q.device.keeper, &q.device.cfg
	for delay := min(firstDelay, cfg.ReconnectDelay); ; delay = min(2*delay, cfg.ReconnectDelay) {
		s, err := k.await(ctx, lost)
		if err != nil {
			result <- returned{err: err}
			return
		}
		answer, err := q.rejoin(ctx, s, kept)
		if err == nil {
			result <- returned{session: s, answer: answer}
			return
		}
		cfg.Log.Debug("connection not restored", "conn", q.index, "error", err)
		q.carrier.Disconnect()
		if s.err() != nil {
			lost = s
			continue
		}
		select {
		case <-time.After(delay):
		case <-s.ended:
		case <-ctx.Done():
		}
	}
}

// rejoin connects the queue to a session, on the terms that it has.
func (q *Queue) rejoin(ctx context.Context, s *session, kept []uint32) (wire.LoginResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, q.device.cfg.Timeout)
	defer cancel()
	if err := q.carrier.Renew(kept); err != nil {
		return wire.LoginResponse{}, err
	}
	ask := s.loginRequest(wire.RoleIO, q.index, len(q.slots))
	ask.InlineMax, ask.MaxIO = q.inline, q.maxIO
	return s.logIn(ctx, q.carrier, ask)
}

// look ends the absence if that is possible.
func (q *Queue) look() {
	select {
	case back := <-q.absence.result: // nil once that was taken
		q.absence.cancel()
		q.absence = absence{}
		if back.err == nil {
			back.err = q.arriveBack(&back)
		}
		if back.err != nil {
			q.gone = true
			q.abandon()
		}
		return
	default:
	}
	if a := &q.absence; !a.over && !a.until.IsZero() && time.Now().After(a.until) {
		a.over = true
		q.abandon()
	}
}

// arriveBack goes on with a connection that stands again.
func (q *Queue) arriveBack(back *returned) error {
	inline := q.inline
	back.answer.InlineMax = min(back.answer.InlineMax, inline) // what the receives are for
	err := q.postOwed()
	if err == nil {
		err = q.accept(&back.answer, len(q.slots))
	}
	if err == nil && q.inline < inline {
		err = &changedError{"takes less payload inside a message than before"}
	}
	if err != nil {
		q.carrier.Disconnect()
		return err
	}
	q.session, q.export, q.failure = back.session, back.session.export.Export, nil
	q.stats.Returns++
	q.resume()
	q.Kick()
	return nil
}

// postOwed posts the receives that were released during the absence.
func (q *Queue) postOwed() error {
	for i := range q.slots {
		sl := &q.slots[i]
		if !sl.owed {
			continue
		}
		sl.owed = false
		if err := q.carrier.Post(q.carrier.Receive(sl.receive)); err != nil {
			return err
		}
	}
	return nil
}

// waits reports whether requests wait for a connection.
func (q *Queue) waits() bool {
	return q.failure != nil && q.device.keeper != nil && !q.gone && !q.absence.over
}

// stay ends an absence for good: the connection is the caller's.
func (q *Queue) stay() {
	if q.absence.result == nil {
		return
	}
	q.absence.cancel()
	<-q.absence.result
	q.absence = absence{}
}
