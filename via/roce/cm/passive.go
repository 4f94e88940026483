package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// receiveREQ handles a REQ.
func (m *Manager) receiveREQ(from netip.AddrPort, b []byte, now time.Duration) {
	var req wire.REQ
	if req.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	var seen connection
	c := &seen // a request that is not taken costs no allocation
	seen = connection{
		remoteID: req.LocalID, state: reqReceived, sameKind: req.VendorID == VendorID,
		service: req.ServiceID, peer: answerTo(from, req.VendorID == VendorID), tid: req.TID,
		peerQP: req.LocalQP, guid: req.LocalGUID, peerTag: requestTag(&req),
	}
	if known := m.table.byREQ[c.remoteName()]; known != nil && known.tid == req.TID && known.peerQP == req.LocalQP {
		m.receiveDuplicateREQ(known, now)
		return
	} else if known != nil {
		m.rejectREQ(c, wire.RejectDuplicateID, nil)
		return
	}
	if old := m.table.byQP[c.remoteQP()]; old != nil {
		m.rejectREQ(c, wire.RejectStale, nil)
		m.suspect(old)
		return
	}
	if reason, ari := m.validate(from, &req); reason != 0 {
		m.rejectREQ(c, reason, ari)
		return
	}
	if !m.welcomes(from, c, &req, now) || !m.makeRoom(plain(from.Addr()), now) {
		return
	}
	c = m.addRequest(seen, &req, now)
	m.report(c, c.requestEvent(&req))
}

// receiveDuplicateREQ answers a repeated REQ.
func (m *Manager) receiveDuplicateREQ(c *connection, now time.Duration) {
	m.counters.Duplicates++
	c.earn()
	switch c.state {
	case reqReceived:
		m.sendMRA(c, now)
	case repSent, timeWait:
		m.transmit(c) // the REP, or the REJ
	}
}

// validate returns why a request is rejected without asking the consumer, and
// an acceptable value.
func (m *Manager) validate(from netip.AddrPort, req *wire.REQ) (reason wire.Reason, ari []byte) {
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

// makeRoom makes room for a request. It evicts the oldest unanswered one: its
// peer repeats it, if genuine. Otherwise it evicts one whose RTU is overdue;
// failing that, there is no room.
func (m *Manager) makeRoom(addr netip.Addr, now time.Duration) bool {
	candidates := m.table.evictable(addr, m.cfg.Pending, m.cfg.PendingPerAddr)
	if candidates == nil {
		return true
	}
	m.counters.Evicted++
	for _, c := range candidates {
		if c.state == reqReceived {
			m.report(c, Event{Kind: TimedOut})
			m.release(c)
			return true
		}
	}
	for _, c := range candidates {
		if now-c.since >= m.maxInterval() {
			m.report(c, Event{Kind: TimedOut})
			m.notifyPeer(c)
			m.enterTimeWait(c, now)
			return true
		}
	}
	return false
}

// addRequest adds a request and returns its connection.
func (m *Manager) addRequest(seen connection, req *wire.REQ, now time.Duration) *connection {
	c := &seen
	asks := time.Duration(req.MaxCMRetries) + 1
	c.timeout = min(max(req.RemoteTimeout.Duration()*asks, m.cfg.Timeout), maxServiceTimeout)
	c.id = m.newID()
	c.earn()
	m.table.add(c)
	m.awaitConsumer(c, min(req.RemoteTimeout.Duration(), maxServiceTimeout)/2, now)
	return c
}

// requestEvent returns the event of a validated request.
func (c *connection) requestEvent(req *wire.REQ) Event {
	e := Event{
		Kind: Requested, From: c.peer, SameKind: c.sameKind, GUID: c.guid, Service: c.service,
		Peer: End{
			QP: req.LocalQP, Expects: req.StartingPSN,
			Resources: req.ResponderResources, Depth: req.InitiatorDepth, RNRRetries: req.RNRRetryCount,
			Room: roomOf(req.LocalEECN, c.sameKind), Tag: requestTag(req),
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

// newREP makes the REP of a connection.
func (m *Manager) newREP(c *connection, a *Answer) (*wire.REP, error) {
	if err := a.End.check(); err != nil {
		return nil, err
	}
	rep := &wire.REP{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		LocalQP: a.End.QP, StartingPSN: a.End.Expects,
		ResponderResources: a.End.Resources, InitiatorDepth: a.End.Depth,
		TargetAckDelay: a.AckDelay, RNRRetryCount: a.End.RNRRetries, LocalGUID: m.cfg.GUID,
	}
	if !c.sameKind {
		return rep, putPrivate(rep.Private[:], a.Private, false)
	}
	rep.LocalEECN = a.End.Room
	at := len(rep.Private) - wire.TagSize
	if c.peerTag != 0 {
		wire.PutTag(rep.Private[at:], a.End.Tag)
	}
	return rep, putPrivate(rep.Private[:at], a.Private, true)
}

// receiveRTU handles an RTU: it completes the handshake.
func (m *Manager) receiveRTU(from netip.AddrPort, b []byte) {
	var rtu wire.RTU
	if rtu.Decode(b) != wire.Accepted {
		m.counters.Malformed++
		return
	}
	c := m.find(from, rtu.RemoteID, rtu.LocalID, rtu.TID)
	switch {
	case c == nil:
	case c.state == repSent:
		m.establish(c)
		m.report(c, Event{Kind: Established})
	default:
		m.counters.Duplicates++
		if c.state == timeWait && !c.active {
			c.earn()
			m.transmit(c) // the REJ that crossed the RTU, or was lost
		}
	}
}
