package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// ErrState is the error of a call that does not fit the connection's state: it
// has ended, or it is already answered.
var ErrState = errors.New("connection does not wait for this")

// ErrRequest is the error of a Request or Answer that no message can carry.
var ErrRequest = errors.New("invalid connection parameters")

// Manager makes and ends the connections of one UDP endpoint. One goroutine at
// a time drives it; it never blocks. Config and the connections that its own
// consumers requested or accepted bound its memory.
type Manager struct {
	cfg             Config
	gid             [16]byte
	responseTimeout wire.Timeout // a sixteenth of Config.Timeout, as REQs tell it
	services        map[wire.ServiceID]bool
	table           table
	timers          timers
	events          []Event
	out             output
	cookies         cookies
	counters        Counters
}

// New returns a Manager without listeners.
func New(c Config) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("connection manager configuration: %w", err)
	}
	c = c.withDefaults()
	return &Manager{
		cfg: c, gid: plain(c.Local.Addr()).As16(),
		responseTimeout: wire.TimeoutFor(c.Timeout / (maxCMRetries + 1)),
		services:        make(map[wire.ServiceID]bool),
		table:           newTable(),
		out:             output{pkey: c.PKey},
	}, nil
}

// Listen accepts requests for a service. It returns false if the service has
// a listener already.
func (m *Manager) Listen(s wire.ServiceID) bool {
	if m.services[s] {
		return false
	}
	m.services[s] = true
	return true
}

// Unlisten rejects further requests for a service. Requests that were reported
// remain to be answered.
func (m *Manager) Unlisten(s wire.ServiceID) { delete(m.services, s) }

// Connect requests a connection from a peer. Granted, Rejected, TimedOut or
// Unreachable reports the result. The Manager keeps no reference to the
// request.
func (m *Manager) Connect(r *Request, now time.Duration) (ID, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	c := &connection{
		id: m.newID(), state: reqSent, active: true, tid: m.cfg.Random(),
		service: r.Service, peer: r.Remote, qp: r.End.QP,
	}
	req, err := m.newREQ(c, r)
	if err != nil {
		return 0, err
	}
	m.table.add(c)
	c.setMessage(req)
	m.startRetransmit(c, now)
	return c.id, nil
}

// Accept accepts a Requested connection; the queue pair must be able to receive
// by now. Established reports that the peer knows; Rejected, TimedOut or
// Disconnected that the connection failed. The Manager keeps no reference to
// the answer.
func (m *Manager) Accept(id ID, a *Answer, now time.Duration) error {
	c := m.table.byID[id]
	if c == nil || c.state != reqReceived {
		return fmt.Errorf("accept: %w", ErrState)
	}
	rep, err := m.newREP(c, a)
	if err != nil {
		return err
	}
	c.qp, c.since = a.End.QP, now
	c.state = repSent
	c.setMessage(rep)
	m.startRetransmit(c, now)
	return nil
}

// Establish completes a connection. At the active end it follows Granted, once
// the queue pair can send and receive, and sends the RTU. At the passive end it
// may follow Accept when a packet has arrived at the queue pair: that replaces
// a late or lost RTU, and no Established follows.
func (m *Manager) Establish(id ID, now time.Duration) error {
	c := m.table.byID[id]
	switch {
	case c == nil:
	case c.state == established:
		return nil
	case c.state == repReceived:
		c.setMessage(&wire.RTU{TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID})
		m.transmit(c)
		m.establish(c)
		m.startRepeats(c, now)
		return nil
	case c.state == repSent:
		m.establish(c)
		return nil
	}
	return fmt.Errorf("establish: %w", ErrState)
}

// Reject rejects a connection that was Requested or Granted. It has no effect
// on a connection that has ended.
func (m *Manager) Reject(id ID, r *Refusal, now time.Duration) error {
	c := m.table.byID[id]
	if c == nil || c.state != reqReceived && c.state != repReceived {
		return nil
	}
	rej, err := m.newREJ(c, r)
	if err != nil {
		return err
	}
	c.setMessage(rej)
	m.transmit(c)
	m.enterTimeWait(c, now)
	return nil
}

// Disconnect ends a connection with a DREQ: Disconnected follows when the peer
// confirms, or after Config.Timeout. A connection that is not established is
// abandoned.
func (m *Manager) Disconnect(id ID, now time.Duration) {
	c := m.table.byID[id]
	switch {
	case c == nil || c.state == dreqSent:
	case c.state == established:
		c.state = dreqSent
		c.setMessage(m.newDREQ(c))
		m.startRetransmit(c, now)
	default:
		m.Abandon(id, now)
	}
}

// DisconnectWith is Disconnect with private data for the peer's consumer: 216
// bytes at most, and only for a viablk peer.
func (m *Manager) DisconnectWith(id ID, private []byte, now time.Duration) {
	if c := m.table.byID[id]; c != nil && c.sameKind {
		c.dreqPrivate = append(c.dreqPrivate[:0], private...)
	}
	m.Disconnect(id, now)
}

// Abandon ends a connection in any state. It notifies the peer once. Only
// Released follows.
func (m *Manager) Abandon(id ID, now time.Duration) {
	c := m.table.byID[id]
	if c == nil || c.state == timeWait {
		return
	}
	m.notifyPeer(c)
	m.enterTimeWait(c, now)
}

// Forget drops a Requested connection as if its REQ had been lost: the peer
// repeats it. Only Released follows.
func (m *Manager) Forget(id ID) {
	if c := m.table.byID[id]; c != nil && c.state == reqReceived {
		m.counters.Evicted++
		m.release(c)
	}
}

// Unreachable handles an ICMP report that an address is unreachable. It ends
// requests to the address, not connections: ICMP is not authenticated.
func (m *Manager) Unreachable(to netip.AddrPort, now time.Duration) {
	for _, c := range m.table.unanswered() {
		if plain(c.peer.Addr()) == plain(to.Addr()) && c.peer.Port() == to.Port() {
			m.report(c, Event{Kind: Unreachable})
			m.enterTimeWait(c, now)
		}
	}
}

// Counters returns the counters.
func (m *Manager) Counters() Counters {
	c := m.counters
	c.Connections, c.Pending = len(m.table.byID), len(m.table.pending)
	return c
}

// Deadline returns when Timeout is due, and false if never.
func (m *Manager) Deadline() (time.Duration, bool) { return m.timers.first() }

// Timeout runs the timers that have expired.
func (m *Manager) Timeout(now time.Duration) {
	for at, ok := m.timers.first(); ok && at <= now; at, ok = m.timers.first() {
		m.expire(m.timers.heap[0], now)
	}
}

// Emit returns the next datagram to send, or false.
func (m *Manager) Emit(d *Datagram) bool {
	if !m.out.next(d) {
		return false
	}
	m.counters.Sent++
	return true
}

// Poll returns the next event, or false.
func (m *Manager) Poll(e *Event) bool {
	if len(m.events) == 0 {
		return false
	}
	*e = m.events[0]
	m.events[0] = Event{}
	m.events = m.events[1:]
	if len(m.events) == 0 {
		m.events = nil
	}
	return true
}

// report queues an event of a connection. A request that ends before it was
// polled is removed from the queue: a flood of requests takes no more room than
// Config allows.
func (m *Manager) report(c *connection, e Event) {
	e.ID = c.id
	if c.state == reqReceived && e.Kind != Requested {
		i := slices.IndexFunc(m.events, func(e Event) bool { return e.ID == c.id && e.Kind == Requested })
		if i >= 0 {
			m.events = slices.Delete(m.events, i, i+1)
			c.unreported = true
		}
	}
	if !c.unreported {
		m.events = append(m.events, e)
	}
}

// newID returns an ID that is free.
func (m *Manager) newID() ID {
	for {
		if id := ID(m.cfg.Random()); id != 0 && m.table.byID[id] == nil {
			return id
		}
	}
}

// plain returns an address in the form that both ends share: without the zone,
// which is local to a host, and with IPv4-mapped IPv6 as IPv4.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
