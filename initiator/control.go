package initiator

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// controller is the state of routineControl: the control connection, the one
// request in flight, and the keepalive.
type controller struct {
	s         *session
	c         *carrier.Carrier
	bell      sched.Bell
	current   *exchange
	next      uint32 // ID of a request
	id        uint32 // of the request in flight
	left      bool   // logged out: the target closes the connection
	keepalive keepalive
	rekey     rekeyer
}

// routineControl serves the control connection until it breaks or the session
// closes: it sends requests, delivers answers and sends keepalives.
func (s *session) routineControl(c *carrier.Carrier, bell sched.Bell) {
	defer s.ended.Set()
	k := &controller{s: s, c: c, bell: bell, keepalive: newKeepalive(s.cfg.Scheduler, s.keepaliveInterval)}
	err := s.cfg.guard("panic: the session ends", k.serve)
	k.endRekey()
	s.forgetKeys() // no connection joins any more
	if err != nil {
		s.cfg.Log.Log(context.Background(), s.cfg.lossLevel(), "session ended", "event", "session_ended", "error", err)
	}
	s.mu.Lock()
	s.cause = err
	s.mu.Unlock()
	if e := s.cfg.guard("panic: control connection not released", c.Close); e != nil {
		s.cfg.Log.Error("control connection not released", "event", "release_failed", "error", e)
	}
}

func (k *controller) serve() error {
	var done [8]via.Completion
	polls := []unix.PollFd{{Fd: int32(k.c.FD()), Events: unix.POLLIN}, {Fd: int32(k.bell.FD()), Events: unix.POLLIN}}
	for {
		n := k.c.Poll(done[:])
		for i := range done[:n] {
			if err := k.completion(&done[i]); err != nil {
				return err
			}
			if k.left {
				return nil
			}
		}
		if k.s.quit.IsSet() {
			return nil
		}
		if err := k.advance(); err != nil {
			return err
		}
		k.c.Doorbell()
		if n > 0 {
			continue
		}
		if !k.c.Connected() {
			return fmt.Errorf("%w: %w", errSession, errLost)
		}
		if d, ok := k.keepalive.wait(); ok && k.c.Arm() {
			d = k.rekey.wait(k.s.cfg.Scheduler.Now, d)
			_ = k.s.cfg.Scheduler.Poll(polls, d) // the next iteration polls in any case
			k.bell.Drain()
		}
	}
}

// completion handles a completed descriptor.
func (k *controller) completion(e *via.Completion) error {
	if e.Recv {
		k.keepalive.heard()
		k.s.heard.Add(1)
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
	case h.PathEpoch != pathEpoch:
		return errStale
	case h.Opcode == wire.OpKeepAliveAck:
		k.keepalive.acknowledged()
		return nil
	case h.Opcode == wire.OpKeepAlive:
		return sendControl(k.c, &wire.KeepAlive{ID: h.ID, PathEpoch: pathEpoch, Ack: true})
	case h.Opcode == wire.OpEvent:
		var v wire.Event
		if err := v.Decode(msg); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		switch v.Kind {
		case wire.EventResize:
			k.s.resized.Store(&v)
		case wire.EventGoAway:
			k.s.cfg.Log.Debug("the target asks to go", "event", "go_away", "host", k.s.cfg.Host)
			k.s.beginDrain() // the logout tells what is durable
		case wire.EventRekey:
			k.rekey.due = k.s.cfg.Scheduler.Now()
		}
		return sendControl(k.c, &wire.EventAck{ID: v.ID, PathEpoch: pathEpoch, Kind: v.Kind})
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
		if x := k.s.nextRequest(); x != nil {
			k.next++
			k.id = k.next
			setID(x.ask, k.id)
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
	if k.keepalive.tick(k.s.life()) {
		return fmt.Errorf("%w: the target was silent for %d keepalives of %v", errSession, k.keepalive.missed, k.keepalive.interval)
	}
	if k.keepalive.awaitingAck || k.c.FreeSends() == 0 {
		return nil // sends in flight prove that this end is alive
	}
	k.keepalive.awaitingAck = true
	return sendControl(k.c, &wire.KeepAlive{PathEpoch: pathEpoch})
}

// setID numbers a request.
func setID(m wire.Message, id uint32) {
	switch q := m.(type) {
	case *wire.OpenRequest:
		q.ID = id
	case *wire.CloseRequest:
		q.ID = id
	case *wire.DiscoverRequest:
		q.ID = id
	case *wire.Logout:
		q.ID = id
	}
}
