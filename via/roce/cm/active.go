package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// What REQs say of the fabric.
const (
	maxCMRetries = 15
	hopLimit     = 64
	flowLabels   = 1<<20 - 1
)

// request makes the REQ of a connection.
func (m *Manager) request(c *connection, r *Request) (*wire.REQ, error) {
	service := wire.RC
	if r.Unreliable {
		service = wire.UC
	}
	req := &wire.REQ{
		TID: c.tid, LocalID: uint32(c.id), VendorID: VendorID,
		ServiceID: r.Service, LocalGUID: m.cfg.GUID, LocalQP: r.End.QP,
		ResponderResources: r.End.Resources, InitiatorDepth: r.End.Depth, LocalEECN: r.End.Room,
		RemoteTimeout: m.patience, LocalTimeout: m.patience, MaxCMRetries: maxCMRetries,
		Transport: service, StartingPSN: r.End.Expects,
		RetryCount: r.Retries, RNRRetryCount: r.End.RNRRetries,
		PKey: m.cfg.PKey, MTU: r.MTU,
		Primary: wire.Path{
			LocalLID: wire.NoLID, RemoteLID: wire.NoLID,
			LocalGID: m.gid, RemoteGID: plain(r.Remote.Addr()).As16(),
			FlowLabel: uint32(m.cfg.Random())%flowLabels + 1, // Linux makes the UDP source port of it
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

// receiveREP takes the peer's yes.
func (m *Manager) receiveREP(from netip.AddrPort, b []byte, now time.Duration) {
	var rep wire.REP
	if rep.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	private, own := openPrivate(rep.Private[:])
	c := m.table.byID[ID(rep.RemoteID)]
	switch {
	case c == nil:
		m.counters.Stray++
		m.refuseREP(from, own, &rep)
	case !c.active, !c.isFrom(from), rep.TID != c.tid, own && from.Port() != c.peer.Port():
		m.counters.Forged++
	case c.state == asking:
		m.grant(c, own, &rep, private, now)
	case rep.LocalID != c.remoteID, c.state == timeWait && !c.spoken:
		m.counters.Stray++ // the REQ that came twice was taken for two
		m.refuseREP(from, own, &rep)
	case c.state == granted:
		m.counters.Duplicates++
		m.plead(c, now)
	default:
		m.counters.Duplicates++
		m.repeat(c) // the RTU, or the REJ
	}
}

// grant asks the consumer what it makes of the peer's yes.
func (m *Manager) grant(c *connection, own bool, rep *wire.REP, private []byte, now time.Duration) {
	c.own, c.remoteID, c.peerQP, c.guid = own, rep.LocalID, rep.LocalQP, rep.LocalGUID
	if !isQueuePair(rep.LocalQP) || rep.LocalID == 0 {
		m.refuseGrant(c, wire.RejectUnsupported, now)
		return
	}
	if old := m.table.byQP[c.remoteQP()]; old != nil {
		m.refuseGrant(c, wire.RejectStale, now)
		m.stale(old, now)
		return
	}
	m.table.byQP[c.remoteQP()] = c
	c.state = granted
	c.spoken = false
	c.patience = m.cfg.Patience
	m.think(c, m.patience.Duration()/2, now)
	m.report(c, Event{
		Kind: Granted, From: c.peer, Own: c.own, GUID: c.guid,
		Peer: End{
			QP: rep.LocalQP, Expects: rep.StartingPSN,
			Resources: rep.ResponderResources, Depth: rep.InitiatorDepth, RNRRetries: rep.RNRRetryCount,
			Room: roomOf(rep.LocalEECN, own),
		},
		Private: private,
	})
}

// refuseREP answers a REP that is about no connection.
func (m *Manager) refuseREP(from netip.AddrPort, own bool, rep *wire.REP) {
	rej := &wire.REJ{
		TID: rep.TID, LocalID: rep.RemoteID, RemoteID: rep.LocalID,
		Answered: wire.AnsweredREP, Reason: wire.RejectInvalidID,
	}
	putPrivate(rej.Private[:], nil, own)
	m.send(answerTo(from, own), rej)
}

// refuseGrant refuses the peer's yes without asking the consumer.
func (m *Manager) refuseGrant(c *connection, reason wire.Reason, now time.Duration) {
	m.counters.Refused++
	rej := &wire.REJ{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: wire.AnsweredREP, Reason: reason,
	}
	putPrivate(rej.Private[:], nil, c.own)
	c.say(rej)
	m.repeat(c)
	m.report(c, Event{Kind: Rejected, Reason: reason})
	m.end(c, now)
}

// receiveMRA waits longer for an answer. It goes on asking, seldom: the answer
// may be a REJ, which nobody repeats unless asked.
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
	if c.state == answered {
		about = wire.AnsweredREP
	}
	if c.state != asking && c.state != answered || mra.Answered != about {
		m.counters.Duplicates++
		return
	}
	c.wait = m.slowest()
	c.again = now + c.wait
	c.deadline = now + min(mra.ServiceTimeout.Duration(), maxThink) + m.cfg.Patience
	m.timers.set(c)
}

// maxThink bounds what is believed of an MRA. The peer can send another.
const maxThink = 2 * time.Minute
