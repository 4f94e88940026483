package initiator

import (
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// poster owns what a queue has staged for the next doorbell.
type poster struct {
	carrier *carrier.Carrier
	epoch   uint32 // of the connection's path
	staged  bool   // a send waits for the doorbell

	immediates bool // keepalives are immediates; else messages

	leaving   bool // the queue logs out
	loggedOut bool // the logout is sent
}

// command stages a command.
func (p *poster) command(s *carrier.Send, cmd *wire.Command, payload carrier.Span) error {
	n := cmd.Encode(s.Head)
	p.staged = true
	if err := p.carrier.StageMessage(s, n, payload); err != nil {
		return fmt.Errorf("stage command: %w", err)
	}
	return nil
}

// kick rings the doorbell for what is staged.
func (p *poster) kick() {
	if p.staged {
		p.staged = false
		p.carrier.Doorbell()
	}
}

// stageKeepalive stages a keepalive, or the answer to one.
func (p *poster) stageKeepalive(ack bool) error {
	s := p.carrier.AcquireSend()
	if s == nil {
		return nil // sends in flight prove that this end is alive
	}
	p.staged = true
	if p.immediates {
		t := wire.ImmKeepAlive
		if ack {
			t = wire.ImmKeepAliveAck
		}
		return p.carrier.StageImmediate(s, uint32(wire.MakeImmediate(t, p.epoch, 0, 0)))
	}
	m := wire.KeepAlive{PathEpoch: p.epoch, Ack: ack}
	n, err := m.Encode(s.Head)
	if err != nil {
		return err
	}
	return p.carrier.StageMessage(s, n, carrier.Span{})
}

// keepalive ends an interval of k: it sends a keepalive unless the last one is
// unanswered, or fails after maxMissed silent intervals.
func (p *poster) keepalive(k *keepalive) error {
	if k.tick(p.carrier.Life(), p.carrier.AnswerTime()) {
		return fmt.Errorf("the target was silent for %d keepalives of %v", k.missed, k.interval)
	}
	if !k.sends() {
		return nil
	}
	k.awaitingAck = p.carrier.FreeSends() > 0
	return p.stageKeepalive(false)
}

// logOut logs out, now or in progress when a send is free. The target drops the
// commands that it has not begun, answers each, then the logout, and ends the
// connection.
func (p *poster) logOut() {
	p.leaving = true
	p.loggedOut = p.loggedOut || sendControl(p.carrier, &wire.Logout{ID: logoutID, PathEpoch: p.epoch}) == nil
	p.staged = true
	p.kick()
}

// logoutID is the ID of the only control request of an I/O connection.
const logoutID = 1
