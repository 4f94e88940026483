package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// newREJ makes the REJ of a consumer.
func (m *Manager) newREJ(c *connection, r *Refusal) (*wire.REJ, error) {
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
	return rej, putPrivate(rej.Private[:], r.Private, c.sameKind)
}

// newTimeoutREJ makes the REJ of a timeout. A sender that does not know the
// peer's ID is identified by its own ID and its GUID.
func (m *Manager) newTimeoutREJ(c *connection) *wire.REJ {
	rej := &wire.REJ{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: wire.AnsweredOther, Reason: wire.RejectTimeout, ARILength: 8,
	}
	binary.BigEndian.PutUint64(rej.ARI[:], m.cfg.GUID)
	return rej
}

// newDREQ makes the DREQ of a connection.
func (m *Manager) newDREQ(c *connection) *wire.DREQ {
	c.endTID = m.cfg.Random()
	dreq := &wire.DREQ{TID: c.endTID, LocalID: uint32(c.id), RemoteID: c.remoteID, RemoteQP: c.peerQP}
	putPrivate(dreq.Private[:], c.dreqPrivate, c.sameKind)
	return dreq
}

// rejectREQ rejects a request without keeping state.
func (m *Manager) rejectREQ(c *connection, reason wire.Reason, ari []byte) {
	m.counters.Refused++
	m.sendREJ(c, reason, ari, nil)
}

// sendREJ sends a REJ to a request that has no state. It allocates nothing.
func (m *Manager) sendREJ(c *connection, reason wire.Reason, ari, private []byte) {
	rej := wire.REJ{TID: c.tid, RemoteID: c.remoteID, Answered: wire.AnsweredREQ, Reason: reason}
	rej.ARILength = uint8(copy(rej.ARI[:], ari))
	_ = putPrivate(rej.Private[:], private, c.sameKind) // a cookie fits
	var mad [wire.MADSize]byte
	rej.Encode(mad[:])
	if !m.out.add(c.peer, &mad) {
		m.counters.Dropped++
	}
}

// suspect handles a REQ from a queue pair that has a connection already. A
// viablk peer never reuses one with the same GUID, so another host sent this
// REQ; of another peer any host may have sent it.
func (m *Manager) suspect(c *connection) {
	if !c.sameKind && c.state == established {
		m.report(c, Event{Kind: Suspected})
	}
}

// endStale handles a REP from a queue pair that has a connection already. Only
// the peer knows what the REP has to have, so that connection has ended.
func (m *Manager) endStale(c *connection, now time.Duration) {
	if c.sameKind || c.state != established {
		return
	}
	m.report(c, Event{Kind: Disconnected, Reason: wire.RejectStale})
	m.notifyPeer(c)
	m.enterTimeWait(c, now)
}

// receiveREJ handles a REJ.
func (m *Manager) receiveREJ(from netip.AddrPort, b []byte, now time.Duration) {
	var rej wire.REJ
	if rej.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	if isDenial(&rej) {
		m.receiveDenial(from, &rej, now)
		return
	}
	c := m.findRejected(from, &rej)
	if c == nil {
		return
	}
	e := Event{Kind: Rejected, Reason: rej.Reason}
	private, marked := openPrivate(rej.Private[:])
	if marked || !c.sameKind {
		e.Private = private
	}
	if m.answerChallenge(c, &rej, private, now) {
		return
	}
	if rej.Reason == wire.RejectInvalidMTU && rej.ARILength > 0 && wire.MTU(rej.ARI[0]).IsValid() {
		e.MTU = wire.MTU(rej.ARI[0])
	}
	switch c.state {
	case timeWait:
		m.counters.Duplicates++
		return
	case established, dreqSent:
		e = Event{Kind: Disconnected, Reason: rej.Reason}
	}
	m.report(c, e)
	c.hasMessage = false
	if c.state == reqSent && rej.Reason != wire.RejectStale {
		m.release(c) // the peer keeps no state: no time-wait is needed
		return
	}
	m.enterTimeWait(c, now)
}

// findRejected returns the connection of a REJ. An active end that timed out
// before it knew our ID identifies itself by its GUID.
func (m *Manager) findRejected(from netip.AddrPort, rej *wire.REJ) *connection {
	if rej.RemoteID != 0 || rej.Reason != wire.RejectTimeout {
		return m.find(from, rej.RemoteID, rej.LocalID, rej.TID)
	}
	c := m.table.byREQ[remoteID{plain(from.Addr()), binary.BigEndian.Uint64(rej.ARI[:]), rej.LocalID}]
	if c == nil {
		m.counters.UnknownID++
		return nil
	}
	return m.find(from, uint32(c.id), rej.LocalID, rej.TID)
}

// receiveDREQ handles a DREQ.
func (m *Manager) receiveDREQ(from netip.AddrPort, b []byte, now time.Duration) {
	var dreq wire.DREQ
	if dreq.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	private, sameKind := openPrivate(dreq.Private[:])
	drep := &wire.DREP{TID: dreq.TID, LocalID: dreq.RemoteID, RemoteID: dreq.LocalID}
	c := m.table.byID[ID(dreq.RemoteID)]
	if c == nil {
		m.counters.UnknownID++
		m.send(answerTo(from, sameKind), drep)
		return
	}
	if !c.isFrom(from) || c.state == reqSent || c.state == reqReceived || c.remoteID != dreq.LocalID || c.qp != dreq.RemoteQP {
		m.counters.BadSource++
		return
	}
	m.send(c.peer, drep)
	if c.state == timeWait {
		m.counters.Duplicates++
		return
	}
	c.hasMessage = false
	e := Event{Kind: Disconnected}
	if c.sameKind && sameKind {
		e.Private = private
	}
	m.report(c, e)
	m.enterTimeWait(c, now)
}

// receiveDREP handles a DREP.
func (m *Manager) receiveDREP(from netip.AddrPort, b []byte, now time.Duration) {
	var drep wire.DREP
	if drep.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.table.byID[ID(drep.RemoteID)]
	switch {
	case c == nil:
		m.counters.UnknownID++
	case !c.isFrom(from) || c.remoteID != drep.LocalID || c.endTID != drep.TID:
		m.counters.BadSource++
	case c.state != dreqSent:
		m.counters.Duplicates++
	default:
		m.report(c, Event{Kind: Disconnected})
		m.enterTimeWait(c, now)
	}
}
