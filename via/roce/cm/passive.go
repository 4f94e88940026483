package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// receiveREQ takes a peer's request.
func (m *Manager) receiveREQ(from netip.AddrPort, b []byte, now time.Duration) {
	var req wire.REQ
	if req.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := &connection{
		remoteID: req.LocalID, state: requested, own: req.VendorID == VendorID,
		service: req.ServiceID, peer: answerTo(from, req.VendorID == VendorID), tid: req.TID,
		peerQP: req.LocalQP, guid: req.LocalGUID,
	}
	if known := m.table.byREQ[c.remoteName()]; known != nil && known.tid == req.TID && known.peerQP == req.LocalQP {
		m.receiveAgain(known, now)
		return
	} else if known != nil {
		m.refuseREQ(c, wire.RejectDuplicateID, nil)
		return
	}
	if old := m.table.byQP[c.remoteQP()]; old != nil {
		m.refuseREQ(c, wire.RejectStale, nil)
		m.stale(old, now)
		return
	}
	if reason, ari := m.judge(from, &req); reason != 0 {
		m.refuseREQ(c, reason, ari)
		return
	}
	if !m.makeRoom(plain(from.Addr()), now) {
		return
	}
	m.admit(c, &req, now)
	m.report(c, c.describe(&req))
}

// receiveAgain answers a REQ that was received before.
func (m *Manager) receiveAgain(c *connection, now time.Duration) {
	m.counters.Duplicates++
	switch c.state {
	case requested:
		m.plead(c, now)
	case answered, timeWait:
		m.repeat(c) // the REP, or the REJ
	}
}

// judge returns why a request is refused that the consumer need not see, and
// what would do.
func (m *Manager) judge(from netip.AddrPort, req *wire.REQ) (reason wire.Reason, ari []byte) {
	var header wire.CMA
	_, isIP := req.ServiceID.TCPPort()
	switch {
	case !m.services[req.ServiceID]:
		return wire.RejectInvalidServiceID, nil
	case req.Transport != wire.RC && req.Transport != wire.UC:
		return wire.RejectInvalidTransport, nil
	case !req.MTU.IsValid() || req.MTU > m.cfg.MTU:
		return wire.RejectInvalidMTU, []byte{byte(m.cfg.MTU)}
	case req.Primary.LocalGID != plain(from.Addr()).As16() || req.Primary.RemoteGID != m.gid:
		return wire.RejectInvalidGID, m.gid[:]
	case !isQueuePair(req.LocalQP), req.LocalID == 0, !wire.MatchPKey(req.PKey, m.cfg.PKey):
		return wire.RejectUnsupported, nil
	case isIP && header.Decode(req.Private[:]) != wire.Accepted:
		return wire.RejectUnsupported, nil
	}
	return 0, nil
}

// makeRoom makes room for a request. The oldest that nobody has answered gives
// way: its peer asks again by itself, unless it is none. Else one that has a REP
// for so long that its RTU should have come; else there is no room.
func (m *Manager) makeRoom(addr netip.Addr, now time.Duration) bool {
	crowd := m.table.crowded(addr, m.cfg.Pending, m.cfg.PendingPerAddr)
	if crowd == nil {
		return true
	}
	m.counters.Evicted++
	for _, c := range crowd {
		if c.state == requested {
			m.report(c, Event{Kind: TimedOut})
			m.release(c)
			return true
		}
	}
	for _, c := range crowd {
		if now-c.since >= m.slowest() {
			m.report(c, Event{Kind: TimedOut})
			m.leave(c)
			m.end(c, now)
			return true
		}
	}
	return false
}

// admit enters a request.
func (m *Manager) admit(c *connection, req *wire.REQ, now time.Duration) {
	asks := time.Duration(req.MaxCMRetries) + 1
	c.patience = min(max(req.RemoteTimeout.Duration()*asks, m.cfg.Patience), maxThink)
	c.id = m.newID()
	m.table.add(c)
	m.think(c, min(req.RemoteTimeout.Duration(), maxThink)/2, now)
}

// describe returns what the consumer hears of a request that was judged.
func (c *connection) describe(req *wire.REQ) Event {
	e := Event{
		Kind: Requested, From: c.peer, Own: c.own, GUID: c.guid, Service: c.service,
		Peer: End{
			QP: req.LocalQP, Expects: req.StartingPSN,
			Resources: req.ResponderResources, Depth: req.InitiatorDepth, RNRRetries: req.RNRRetryCount,
			Room: roomOf(req.LocalEECN, c.own),
		},
		MTU: req.MTU, Unreliable: req.Transport == wire.UC,
		Retries: req.RetryCount, AckTimeout: req.Primary.AckTimeout,
	}
	private := req.Private[:]
	if _, ok := c.service.TCPPort(); ok {
		e.CMA.Decode(private)
		private = private[wire.CMASize:]
	}
	e.Private = append(e.Private, private...)
	return e
}

// answer makes the REP of a connection.
func (m *Manager) answer(c *connection, a *Answer) (*wire.REP, error) {
	if err := a.End.check(); err != nil {
		return nil, err
	}
	rep := &wire.REP{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		LocalQP: a.End.QP, StartingPSN: a.End.Expects,
		ResponderResources: a.End.Resources, InitiatorDepth: a.End.Depth,
		TargetAckDelay: a.AckDelay, RNRRetryCount: a.End.RNRRetries, LocalGUID: m.cfg.GUID,
	}
	if c.own {
		rep.LocalEECN = a.End.Room
	}
	return rep, putPrivate(rep.Private[:], a.Private, c.own)
}

// receiveRTU completes the handshake.
func (m *Manager) receiveRTU(from netip.AddrPort, b []byte) {
	var rtu wire.RTU
	if rtu.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.find(from, rtu.RemoteID, rtu.LocalID, rtu.TID)
	switch {
	case c == nil:
	case c.state == answered:
		m.establish(c)
		m.report(c, Event{Kind: Established})
	default:
		m.counters.Duplicates++
		if c.state == timeWait && !c.active {
			m.repeat(c) // the REJ that crossed the RTU, or was lost
		}
	}
}
