package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// refusal makes the REJ that a consumer wants.
func (m *Manager) refusal(c *connection, r *Refusal) (*wire.REJ, error) {
	rej := &wire.REJ{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: wire.AnsweredREQ, Reason: r.Reason,
	}
	if c.active {
		rej.Answered = wire.AnsweredREP
	}
	if rej.Reason == 0 {
		rej.Reason = wire.RejectConsumer
	}
	if rej.Reason == wire.RejectInvalidMTU {
		rej.ARI[0], rej.ARILength = byte(r.MTU), 1
	}
	return rej, putPrivate(rej.Private[:], r.Private, c.own)
}

// timeoutRefusal makes the REJ that says that this end has given up. Who knows
// only its own name of the connection finds it by name and GUID.
func (m *Manager) timeoutRefusal(c *connection) *wire.REJ {
	rej := &wire.REJ{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: wire.AnsweredOther, Reason: wire.RejectTimeout, ARILength: 8,
	}
	binary.BigEndian.PutUint64(rej.ARI[:], m.cfg.GUID)
	return rej
}

// disconnection makes the DREQ of a connection.
func (m *Manager) disconnection(c *connection) *wire.DREQ {
	c.endTID = m.cfg.Random()
	dreq := &wire.DREQ{TID: c.endTID, LocalID: uint32(c.id), RemoteID: c.remoteID, RemoteQP: c.peerQP}
	putPrivate(dreq.Private[:], c.farewell, c.own)
	return dreq
}

// refuseREQ answers a request without keeping it.
func (m *Manager) refuseREQ(c *connection, reason wire.Reason, ari []byte) {
	rej := &wire.REJ{TID: c.tid, RemoteID: c.remoteID, Answered: wire.AnsweredREQ, Reason: reason}
	rej.ARILength = uint8(copy(rej.ARI[:], ari))
	m.counters.Refused++
	putPrivate(rej.Private[:], nil, c.own)
	m.send(c.peer, rej)
}

// stale deals with a connection whose peer says that its queue pair has begun
// another one. A peer of our own kind never does, so it was somebody else.
func (m *Manager) stale(c *connection, now time.Duration) {
	if c.own || c.state != established {
		return
	}
	m.report(c, Event{Kind: Disconnected, Reason: wire.RejectStale})
	m.leave(c)
	m.end(c, now)
}

// receiveREJ takes the peer's no.
func (m *Manager) receiveREJ(from netip.AddrPort, b []byte, now time.Duration) {
	var rej wire.REJ
	if rej.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.refused(from, &rej)
	if c == nil {
		return
	}
	e := Event{Kind: Rejected, Reason: rej.Reason}
	private, marked := openPrivate(rej.Private[:])
	if marked || !c.own {
		e.Private = private
	}
	if rej.Reason == wire.RejectInvalidMTU && rej.ARILength > 0 && wire.MTU(rej.ARI[0]).IsValid() {
		e.MTU = wire.MTU(rej.ARI[0])
	}
	switch c.state {
	case timeWait:
		m.counters.Duplicates++
		return
	case established, disconnecting:
		e = Event{Kind: Disconnected, Reason: rej.Reason}
	}
	m.report(c, e)
	c.spoken = false
	if c.state == asking && rej.Reason != wire.RejectStale {
		m.release(c) // the peer keeps nothing, and may be asked again at once
		return
	}
	m.end(c, now)
}

// refused returns the connection that a REJ is about. Who gave up before it knew
// our ID has said its GUID.
func (m *Manager) refused(from netip.AddrPort, rej *wire.REJ) *connection {
	if rej.RemoteID != 0 || rej.Reason != wire.RejectTimeout {
		return m.find(from, rej.RemoteID, rej.LocalID, rej.TID)
	}
	c := m.table.byREQ[remoteID{plain(from.Addr()), binary.BigEndian.Uint64(rej.ARI[:]), rej.LocalID}]
	if c == nil {
		m.counters.Stray++
		return nil
	}
	return m.find(from, uint32(c.id), rej.LocalID, rej.TID)
}

// receiveDREQ takes the peer's wish to disconnect.
func (m *Manager) receiveDREQ(from netip.AddrPort, b []byte, now time.Duration) {
	var dreq wire.DREQ
	if dreq.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	private, own := openPrivate(dreq.Private[:])
	drep := &wire.DREP{TID: dreq.TID, LocalID: dreq.RemoteID, RemoteID: dreq.LocalID}
	c := m.table.byID[ID(dreq.RemoteID)]
	if c == nil {
		m.counters.Stray++
		m.send(answerTo(from, own), drep)
		return
	}
	if !c.isFrom(from) || c.state == asking || c.state == requested || c.remoteID != dreq.LocalID || c.qp != dreq.RemoteQP {
		m.counters.Forged++
		return
	}
	m.send(c.peer, drep)
	if c.state == timeWait {
		m.counters.Duplicates++
		return
	}
	c.spoken = false
	e := Event{Kind: Disconnected}
	if c.own && own {
		e.Private = private
	}
	m.report(c, e)
	m.end(c, now)
}

// receiveDREP takes the answer to our DREQ.
func (m *Manager) receiveDREP(from netip.AddrPort, b []byte, now time.Duration) {
	var drep wire.DREP
	if drep.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.table.byID[ID(drep.RemoteID)]
	switch {
	case c == nil:
		m.counters.Stray++
	case !c.isFrom(from) || c.remoteID != drep.LocalID || c.endTID != drep.TID:
		m.counters.Forged++
	case c.state != disconnecting:
		m.counters.Duplicates++
	default:
		m.report(c, Event{Kind: Disconnected})
		m.end(c, now)
	}
}
