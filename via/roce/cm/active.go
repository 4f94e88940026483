package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// Values of REQs that describe the fabric.
const (
	maxCMRetries = 15
	hopLimit     = 64
	flowLabels   = 1<<20 - 1
)

// newREQ makes the REQ of a connection.
func (m *Manager) newREQ(c *connection, r *Request) (*wire.REQ, error) {
	service := wire.RC
	if r.Unreliable {
		service = wire.UC
	}
	req := &wire.REQ{
		TID: c.tid, LocalID: uint32(c.id), VendorID: VendorID,
		ServiceID: r.Service, LocalGUID: m.cfg.GUID, LocalQP: r.End.QP,
		ResponderResources: r.End.Resources, InitiatorDepth: r.End.Depth, LocalEECN: r.End.Room, Tag: r.End.Tag,
		RemoteTimeout: m.responseTimeout, LocalTimeout: m.responseTimeout, MaxCMRetries: maxCMRetries,
		Transport: service, StartingPSN: r.End.Expects,
		RetryCount: r.Retries, RNRRetryCount: r.End.RNRRetries,
		PKey: m.cfg.PKey, MTU: r.MTU,
		Primary: wire.Path{
			LocalLID: wire.NoLID, RemoteLID: wire.NoLID,
			LocalGID: m.gid, RemoteGID: plain(r.Remote.Addr()).As16(),
			FlowLabel: uint32(m.cfg.Random())%flowLabels + 1, // Linux derives the UDP source port from it
			HopLimit:  hopLimit, TrafficClass: r.TrafficClass, AckTimeout: r.AckTimeout,
		},
	}
	user := req.Private[:]
	if _, ok := r.Service.TCPPort(); ok {
		h := wire.CMA{
			SrcPort: m.cfg.Local.Port(),
			Src:     plain(m.cfg.Local.Addr()), Dst: plain(r.Remote.Addr()),
		}
		user = user[h.Encode(user):]
	}
	return req, putPrivate(user, r.Private, false)
}

// receiveREP handles a REP.
func (m *Manager) receiveREP(from netip.AddrPort, b []byte, now time.Duration) {
	var rep wire.REP
	if rep.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	private, sameKind := openPrivate(rep.Private[:])
	c := m.table.byID[ID(rep.RemoteID)]
	switch {
	case c == nil:
		m.counters.UnknownID++
		m.rejectUnknownREP(from, sameKind, &rep)
	case !c.active, !c.isFrom(from), rep.TID != c.tid, sameKind && from.Port() != c.peer.Port():
		m.counters.BadSource++
	case c.state == reqSent:
		m.receiveGrant(c, sameKind, &rep, private, now)
	case rep.LocalID != c.remoteID, c.state == timeWait && !c.hasMessage:
		m.counters.UnknownID++ // the peer took a repeated REQ for a second one
		m.rejectUnknownREP(from, sameKind, &rep)
	case c.state == repReceived:
		m.counters.Duplicates++
		m.sendMRA(c, now)
	default:
		m.counters.Duplicates++
		m.transmit(c) // the RTU, or the REJ
	}
}

// receiveGrant reports the peer's REP to the consumer.
func (m *Manager) receiveGrant(c *connection, sameKind bool, rep *wire.REP, private []byte, now time.Duration) {
	c.sameKind, c.remoteID, c.peerQP, c.guid = sameKind, rep.LocalID, rep.LocalQP, rep.LocalGUID
	if !isQueuePair(rep.LocalQP) || rep.LocalID == 0 {
		m.rejectREP(c, wire.RejectUnsupported, now)
		return
	}
	if old := m.table.byQP[c.remoteQP()]; old != nil {
		m.rejectREP(c, wire.RejectStale, now)
		m.endStale(old, now)
		return
	}
	c.peerTag = replyTag(rep, sameKind)
	m.table.addPeer(c)
	c.state = repReceived
	c.hasMessage = false
	c.timeout = m.cfg.Timeout
	m.awaitConsumer(c, m.responseTimeout.Duration()/2, now)
	m.report(c, Event{
		Kind: Granted, From: c.peer, SameKind: c.sameKind, GUID: c.guid,
		Peer: End{
			QP: rep.LocalQP, Expects: rep.StartingPSN,
			Resources: rep.ResponderResources, Depth: rep.InitiatorDepth, RNRRetries: rep.RNRRetryCount,
			Room: roomOf(rep.LocalEECN, sameKind), Tag: c.peerTag,
		},
		Private: private,
	})
}

// rejectUnknownREP answers a REP of an unknown connection.
func (m *Manager) rejectUnknownREP(from netip.AddrPort, sameKind bool, rep *wire.REP) {
	rej := &wire.REJ{
		TID: rep.TID, LocalID: rep.RemoteID, RemoteID: rep.LocalID,
		Answered: wire.AnsweredREP, Reason: wire.RejectInvalidID,
	}
	putPrivate(rej.Private[:], nil, sameKind)
	m.send(answerTo(from, sameKind), rej)
}

// rejectREP rejects a REP without asking the consumer.
func (m *Manager) rejectREP(c *connection, reason wire.Reason, now time.Duration) {
	m.counters.Refused++
	rej := &wire.REJ{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: wire.AnsweredREP, Reason: reason,
	}
	putPrivate(rej.Private[:], nil, c.sameKind)
	c.setMessage(rej)
	m.transmit(c)
	m.report(c, Event{Kind: Rejected, Reason: reason})
	m.enterTimeWait(c, now)
}

// receiveMRA extends the timeout and slows the repetitions. They continue,
// because the answer may be a REJ, which the peer repeats only for a repeated
// message.
func (m *Manager) receiveMRA(from netip.AddrPort, b []byte, now time.Duration) {
	var mra wire.MRA
	if mra.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.find(from, mra.RemoteID, mra.LocalID, mra.TID)
	if c == nil {
		return
	}
	about := wire.AnsweredREQ
	if c.state == repSent {
		about = wire.AnsweredREP
	}
	if c.state != reqSent && c.state != repSent || mra.Answered != about {
		m.counters.Duplicates++
		return
	}
	c.proven = true // it has the ID of a REP
	c.interval = m.maxInterval()
	c.retransmitAt = now + c.interval
	c.deadline = now + min(mra.ServiceTimeout.Duration(), maxServiceTimeout) + m.cfg.Timeout
	m.timers.set(c)
}

// maxServiceTimeout bounds the delay that one MRA is granted. The peer can send
// another.
const maxServiceTimeout = 2 * time.Minute
