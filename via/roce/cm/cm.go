package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// ErrState is the error of a call that comes when the connection is not waiting
// for it: it has ended meanwhile, or it has been answered.
var ErrState = errors.New("connection does not wait for this")

// ErrRequest is the error of a Request or Answer that no message can carry.
var ErrRequest = errors.New("invalid connection parameters")

// Manager makes and ends the connections of one UDP endpoint. One goroutine at a
// time drives it; nothing blocks. What it keeps is bounded by Config and by the
// connections that its own end asked for or accepted.
type Manager struct {
	cfg      Config
	gid      [16]byte
	patience wire.Timeout // a sixteenth of Config.Patience, as REQs tell it
	services map[wire.ServiceID]bool
	table    table
	timers   timers
	events   []Event
	out      output
	counters Counters
}

// New returns a Manager without listeners.
func New(c Config) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("connection manager configuration: %w", err)
	}
	c = c.withDefaults()
	return &Manager{
		cfg: c, gid: plain(c.Local.Addr()).As16(),
		patience: wire.TimeoutFor(c.Patience / (maxCMRetries + 1)),
		services: make(map[wire.ServiceID]bool),
		table:    newTable(),
		out:      output{pkey: c.PKey},
	}, nil
}

// Listen accepts requests for a service. It returns false if somebody does
// already.
func (m *Manager) Listen(s wire.ServiceID) bool {
	if m.services[s] {
		return false
	}
	m.services[s] = true
	return true
}

// Unlisten refuses further requests for a service. Those that were reported are
// still to be answered.
func (m *Manager) Unlisten(s wire.ServiceID) { delete(m.services, s) }

// Connect asks a peer for a connection. One of Granted, Rejected, TimedOut and
// Unreachable says what came of it. It keeps nothing of the request.
func (m *Manager) Connect(r *Request, now time.Duration) (ID, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	c := &connection{
		id: m.newID(), state: asking, active: true, tid: m.cfg.Random(),
		service: r.Service, peer: r.Remote, qp: r.End.QP,
	}
	req, err := m.request(c, r)
	if err != nil {
		return 0, err
	}
	m.table.add(c)
	c.say(req)
	m.ask(c, now)
	return c.id, nil
}

// Accept grants a Requested connection; the queue pair must be able to receive
// by now. Established says that the peer knows; Rejected, TimedOut or
// Disconnected that it does not want any more. It keeps nothing of the answer.
func (m *Manager) Accept(id ID, a *Answer, now time.Duration) error {
	c := m.table.byID[id]
	if c == nil || c.state != requested {
		return fmt.Errorf("accept: %w", ErrState)
	}
	rep, err := m.answer(c, a)
	if err != nil {
		return err
	}
	c.qp, c.since = a.End.QP, now
	c.state = answered
	c.say(rep)
	m.ask(c, now)
	return nil
}

// Establish says that a connection works. At the active end it follows Granted,
// once the queue pair can send and receive, and tells the peer. At the passive
// end it may follow Accept, when a packet has come to the queue pair: that stands
// for an RTU that is late or lost, and no Established follows.
func (m *Manager) Establish(id ID, now time.Duration) error {
	c := m.table.byID[id]
	switch {
	case c == nil:
	case c.state == established:
		return nil
	case c.state == granted:
		c.say(&wire.RTU{TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID})
		m.repeat(c)
		m.establish(c)
		return nil
	case c.state == answered:
		m.establish(c)
		return nil
	}
	return fmt.Errorf("establish: %w", ErrState)
}

// Reject refuses a connection that was Requested or Granted. Nothing happens if
// it has ended meanwhile.
func (m *Manager) Reject(id ID, r *Refusal, now time.Duration) error {
	c := m.table.byID[id]
	if c == nil || c.state != requested && c.state != granted {
		return nil
	}
	rej, err := m.refusal(c, r)
	if err != nil {
		return err
	}
	c.say(rej)
	m.repeat(c)
	m.end(c, now)
	return nil
}

// Disconnect ends a connection politely: Disconnected follows when the peer
// knows, or after Config.Patience. A connection that is not established is
// abandoned.
func (m *Manager) Disconnect(id ID, now time.Duration) {
	c := m.table.byID[id]
	switch {
	case c == nil || c.state == disconnecting:
	case c.state == established:
		c.state = disconnecting
		c.say(m.disconnection(c))
		m.ask(c, now)
	default:
		m.Abandon(id, now)
	}
}

// DisconnectWith is Disconnect with private data for the peer's consumer: 216
// bytes at most, and only for a peer of our own kind.
func (m *Manager) DisconnectWith(id ID, private []byte, now time.Duration) {
	if c := m.table.byID[id]; c != nil && c.own {
		c.farewell = append(c.farewell[:0], private...)
	}
	m.Disconnect(id, now)
}

// Abandon ends a connection in any state. The peer is told once; but for
// Released no event follows.
func (m *Manager) Abandon(id ID, now time.Duration) {
	c := m.table.byID[id]
	if c == nil || c.state == timeWait {
		return
	}
	m.leave(c)
	m.end(c, now)
}

// Forget drops a connection that was Requested, as if the request had not come: its
// peer asks again. But for Released no event follows.
func (m *Manager) Forget(id ID) {
	if c := m.table.byID[id]; c != nil && c.state == requested {
		m.counters.Evicted++
		m.release(c)
	}
}

// Unreachable is what the network says of an address: nobody is there. Requests
// to it end. Connections do not, since anybody can say so.
func (m *Manager) Unreachable(to netip.AddrPort, now time.Duration) {
	for _, c := range m.table.asking() {
		if plain(c.peer.Addr()) == plain(to.Addr()) && c.peer.Port() == to.Port() {
			m.report(c, Event{Kind: Unreachable})
			m.end(c, now)
		}
	}
}

// Counters returns the counters.
func (m *Manager) Counters() Counters {
	c := m.counters
	c.Connections, c.Pending = len(m.table.byID), len(m.table.pending)
	return c
}

// Deadline returns when Timeout has something to do, if ever.
func (m *Manager) Deadline() (time.Duration, bool) { return m.timers.first() }

// Timeout does what is due.
func (m *Manager) Timeout(now time.Duration) {
	for at, ok := m.timers.first(); ok && at <= now; at, ok = m.timers.first() {
		m.expire(m.timers.heap[0], now)
	}
}

// Emit takes the next datagram that is to be sent. It returns false if there is
// none.
func (m *Manager) Emit(d *Datagram) bool {
	if !m.out.next(d) {
		return false
	}
	m.counters.Sent++
	return true
}

// Poll takes the next event. It returns false if there is none.
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

// report queues an event of a connection. A request that ends before anybody has
// polled it was never there: so a flood of them takes no more room than Config
// grants.
func (m *Manager) report(c *connection, e Event) {
	e.ID = c.id
	if c.state == requested && e.Kind != Requested {
		i := slices.IndexFunc(m.events, func(e Event) bool { return e.ID == c.id && e.Kind == Requested })
		if i >= 0 {
			m.events = slices.Delete(m.events, i, i+1)
			c.unknown = true
		}
	}
	if !c.unknown {
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

// plain is an address as two ends have it in common: without the zone, which is
// a matter of one host, and IPv4 as such.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
