package initiator

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// controller is what routineControl owns: the control connection, one request
// under way, and the target's signs of life.
type controller struct {
	s       *session
	c       *carrier.Carrier
	current *exchange
	next    uint32 // ID of a request
	id      uint32 // of the request under way
	left    bool   // logged out: the target closes the connection now
	beat    beat
}

// routineControl serves the control connection until it breaks or the session
// closes: it sends requests, hands out answers and keeps the heartbeat.
func (s *session) routineControl(c *carrier.Carrier) {
	defer close(s.ended)
	k := &controller{s: s, c: c, beat: newBeat(s.beat)}
	err := k.serve()
	if err != nil {
		s.cfg.Log.Log(context.Background(), s.cfg.lossLevel(), "session ended", "error", err)
	}
	s.mu.Lock()
	s.cause = err
	s.mu.Unlock()
	if e := c.Close(); e != nil {
		s.cfg.Log.Error("control connection not released", "error", e)
	}
}

func (k *controller) serve() error {
	var done [8]via.Completion
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
		select {
		case <-k.s.quit:
			return nil
		default:
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
		if d, ok := k.beat.wait(); ok && k.c.Arm() {
			sleepOn(k.c.FD(), d, k.s.wakeFD)
			k.drainWake()
		}
	}
}

// drainWake empties the eventfd that request wrote.
func (k *controller) drainWake() {
	var b [8]byte
	_, _ = unix.Read(k.s.wakeFD, b[:]) // empty is fine
}

// completion handles what the VI finished.
func (k *controller) completion(e *via.Completion) error {
	if e.Recv {
		k.beat.heard()
	}
	msg, err := takeControl(k.c, e)
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
	case h.Opcode == wire.OpHeartbeatAck:
		k.beat.acknowledged()
		return nil
	case h.Opcode == wire.OpHeartbeat:
		return sendControl(k.c, &wire.Heartbeat{ID: h.ID, PathEpoch: pathEpoch, Ack: true})
	case h.Opcode == wire.OpEvent:
		var v wire.Event
		if err := v.Decode(msg); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if v.Kind == wire.EventResize {
			k.s.resized.Store(&v)
		}
		return sendControl(k.c, &wire.EventAck{ID: v.ID, PathEpoch: pathEpoch, Kind: v.Kind})
	case k.current != nil && h.ID == k.id:
		_, k.left = k.current.ask.(*wire.Logout)
		k.current.answer <- msg
		k.current = nil
		return nil
	default:
		return fmt.Errorf("unexpected %v", h.Opcode)
	}
}

// advance sends the next request and the heartbeat.
func (k *controller) advance() error {
	if k.current == nil {
		select {
		case x := <-k.s.requests:
			k.next++
			k.id = k.next
			setID(x.ask, k.id)
			k.current = x
			if err := sendControl(k.c, x.ask); err != nil {
				return err
			}
		default:
		}
	}
	if !k.beat.due() {
		return nil
	}
	if k.beat.tick() {
		return fmt.Errorf("%w: the target was silent for %d heartbeats of %v", errSession, k.beat.missed, k.beat.interval)
	}
	if k.beat.asked || k.c.FreeSends() == 0 {
		return nil // what is on its way shows life
	}
	k.beat.asked = true
	return sendControl(k.c, &wire.Heartbeat{PathEpoch: pathEpoch})
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
