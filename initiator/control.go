package initiator

import (
	"context"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// controller is the state of routineControl: the control connection, the one
// request in flight, and the keepalive.
type controller struct {
	p         *path
	s         *session // of the path
	c         *carrier.Carrier
	bell      sched.Bell
	current   *exchange
	next      uint32 // ID of a request
	id        uint32 // of the request in flight
	left      bool   // logged out: the target closes the connection
	keepalive keepalive
	rekey     rekeyer

	failure error         // why the last visit ended the connection
	files   [2]loop.File  // of the carrier and the bell
	watched [2]*loop.File // them
	done    [8]via.Completion
}

// routineControl serves the control connection until it breaks or the path is
// closed: it sends requests, delivers answers and sends keepalives.
func (p *path) routineControl(c *carrier.Carrier, bell sched.Bell, interval time.Duration) {
	s := p.s
	defer p.setEnded()
	k := &controller{p: p, s: s, c: c, bell: bell, keepalive: newKeepalive(s.cfg.Scheduler, interval, p.since)}
	err := k.serve()
	k.endRekey()
	if p.only() {
		s.forgetKeys() // no connection joins any more
	}
	if err != nil && !s.keeping.Load() { // else routinePath logs it
		s.cfg.Log.Log(context.Background(), s.cfg.lossLevel(), "session ended", "event", "session_ended", "error", err)
	}
	p.mu.Lock()
	p.cause = err
	p.mu.Unlock()
	if e := s.cfg.guard("panic: control connection not released", c.Close); e != nil {
		s.cfg.Log.Error("control connection not released", "event", "release_failed", "error", e)
	}
}

// serve has a loop drive the connection until it ends.
func (k *controller) serve() error {
	k.files = [...]loop.File{{FD: k.c.FD()}, {FD: k.bell.FD()}}
	k.watched = [...]*loop.File{&k.files[0], &k.files[1]}
	if err := k.s.cfg.Scheduler.Drive(k); err != nil {
		return err
	}
	return k.failure
}

// Visit implements [loop.Task].
func (k *controller) Visit(loop.Round) (next loop.Next) {
	next.Done = true
	k.failure = k.s.cfg.guard("panic: the session ends", func() (err error) {
		next, err = k.visit()
		return err
	})
	next.Done = next.Done || k.failure != nil
	return next
}

// visitBatches bounds how many batches of messages a visit handles.
const visitBatches = 16

// visit handles what has arrived, and sends what is due.
func (k *controller) visit() (loop.Next, error) {
	if k.files[1].Ready {
		k.bell.Drain()
	}
	for range visitBatches {
		n := k.c.Poll(k.done[:])
		for i := range k.done[:n] {
			if err := k.completion(&k.done[i]); err != nil || k.left {
				return loop.Next{Done: true}, err
			}
		}
		if k.p.quit.IsSet() {
			return loop.Next{Done: true}, nil
		}
		if err := k.advance(); err != nil {
			return loop.Next{}, err
		}
		k.c.Doorbell()
		if n > 0 {
			continue
		}
		if !k.c.Connected() {
			return loop.Next{}, fmt.Errorf("%w: %w", errSession, errLost)
		}
		if d, ok := k.keepalive.wait(); ok && k.c.Arm() {
			return loop.Next{Wait: k.rekey.wait(k.s.cfg.Scheduler.Now, d), Files: k.watched[:]}, nil
		}
	}
	return loop.Next{Again: true}, nil
}

// completion handles a completed descriptor.
func (k *controller) completion(e *via.Completion) error {
	if e.Recv {
		k.keepalive.heard()
		k.p.heard.Add(1)
	}
	msg, err := receiveControl(k.c, e)
	if err != nil || msg == nil {
		return err
	}
	h, err := wire.PeekControl(msg)
	if err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	switch {
	case h.PathEpoch != k.p.epoch:
		return errStale
	case h.Opcode == wire.OpKeepAliveAck:
		k.keepalive.acknowledged()
		return nil
	case h.Opcode == wire.OpKeepAlive:
		return sendControl(k.c, &wire.KeepAlive{ID: h.ID, PathEpoch: k.p.epoch, Ack: true})
	case h.Opcode == wire.OpEvent:
		var v wire.Event
		if err := v.Decode(msg); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		switch v.Kind {
		case wire.EventResize:
			k.s.resized.Store(&v)
		case wire.EventGoAway:
			k.s.cfg.Log.Debug("the target asks to go", "event", "go_away", "host", k.s.cfg.Host, "retry_after", v.RetryAfter)
			k.s.goAway(&v)
		case wire.EventExportAdded:
			k.s.cfg.Log.Info("the target has another export", "event", "export_added", "host", k.s.cfg.Host, "export", v.Name, "size", v.Size)
		case wire.EventExportRemoved:
			k.s.cfg.Log.Info("the target has removed an export", "event", "export_removed", "host", k.s.cfg.Host, "export", v.Name)
		case wire.EventRekey:
			k.rekey.due = k.s.cfg.Scheduler.Now()
		}
		return sendControl(k.c, &wire.EventAck{ID: v.ID, PathEpoch: k.p.epoch, Kind: v.Kind})
	case h.Opcode == wire.OpAuthResponse && k.rekey.handshake != nil:
		return k.rekeyAnswer(msg)
	case k.current != nil && h.ID == k.id:
		_, k.left = k.current.ask.(*wire.Logout)
		k.current.answer = msg
		k.current.answered.Set()
		k.current = nil
		return nil
	default:
		return fmt.Errorf("unexpected %v", h.Opcode)
	}
}

// advance sends the next request, the keepalive, and what is due of a rekey,
// while sends are free.
func (k *controller) advance() error {
	if err := k.tendKeys(); err != nil {
		return err
	}
	if k.current == nil && k.rekey.handshake == nil && k.c.FreeSends() > 0 {
		if x := k.p.nextRequest(); x != nil {
			k.next++
			k.id = k.next
			setID(x.ask, k.id, k.p.epoch)
			k.current = x
			if err := sendControl(k.c, x.ask); err != nil {
				return err
			}
		}
	}
	if !k.keepalive.due() {
		return nil
	}
	k.c.Age(k.s.cfg.Scheduler.Now())
	life := k.p.life()
	if k.c.KeepAlive() && k.keepalive.seen(life) {
		k.p.heard.Add(1)
	}
	if k.keepalive.tick(life, k.c.AnswerTime()) {
		return fmt.Errorf("%w: the target was silent for %d keepalives of %v", errSession, k.keepalive.missed, k.keepalive.interval)
	}
	if k.c.FreeSends() == 0 || !k.keepalive.sends() {
		return nil // sends in flight prove that this end is alive
	}
	k.keepalive.awaitingAck = true
	return sendControl(k.c, &wire.KeepAlive{PathEpoch: k.p.epoch})
}

// setID numbers a request on a path of the given epoch.
func setID(m wire.Message, id, epoch uint32) {
	switch q := m.(type) {
	case *wire.OpenRequest:
		q.ID, q.PathEpoch = id, epoch
	case *wire.Fence:
		q.ID, q.PathEpoch = id, epoch
	case *wire.Logout:
		q.ID, q.PathEpoch = id, epoch
	}
}
