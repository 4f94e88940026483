package roce

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// cmConn is a connection of the connection manager and where its events go.
// endpoint.mu guards its fields.
type cmConn struct {
	id            cm.ID
	events        chan cm.Event // of the handshake
	link          *link         // nil until it exists
	qpn           uint32        // reserved until the manager releases the connection; 0 is none
	established   bool          // the handshake is complete
	disconnecting bool          // this end has sent a DREQ
	peerDone      bool          // the peer needs no DREP or DREQ any more
}

// handshakeEvents exceeds the number of events of a handshake.
const handshakeEvents = 4

// lostLink is a link whose connection has ended, or is suspected to have, and
// the final ack of the DREQ.
type lostLink struct {
	link      *link
	suspected bool
	gone      bool // the peer knows nothing of it
	finalAck  []byte
}

// withManager calls do with the connection manager, sends the resulting MADs,
// and dispatches the resulting events.
func (e *endpoint) withManager(do func(m *cm.Manager, now time.Duration)) {
	lost, asked := e.manage(do)
	for _, x := range lost {
		switch {
		case x.suspected:
			x.link.peerSuspected()
		case x.gone:
			x.link.peerGone()
		default:
			x.link.peerDisconnected(x.finalAck)
		}
	}
	for _, r := range asked {
		r.listening.submit(r)
	}
}

// manage calls do with the connection manager, sends the resulting MADs, and
// returns what the resulting events are about.
func (e *endpoint) manage(do func(m *cm.Manager, now time.Duration)) (lost []lostLink, asked []*request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.containManager()
	now := clock()
	do(e.manager, now)
	e.sendMADs(now)
	lost, asked = e.handleEvents()
	if at, ok := e.manager.Deadline(); ok && at < e.wakeAt {
		e.wakeAt = at
		e.poller.interrupt()
	}
	return lost, asked
}

// handleEvents dequeues the manager's events.
//
// +checklocks:e.mu
func (e *endpoint) handleEvents() (lost []lostLink, asked []*request) {
	for ev := (cm.Event{}); e.manager.Poll(&ev); {
		c := e.conns[ev.ID]
		switch {
		case ev.Kind == cm.Requested:
			if r := e.requested(ev); r != nil {
				asked = append(asked, r)
			}
			continue
		case c == nil:
			continue
		case ev.Kind == cm.Released:
			delete(e.conns, ev.ID)
			delete(e.numbers, c.qpn)
			continue
		case ev.Kind == cm.Suspected:
			if c.link != nil {
				lost = append(lost, lostLink{link: c.link, suspected: true})
			}
			continue
		case ev.Kind == cm.Established:
			c.established = true
		case ev.Kind == cm.Rejected, ev.Kind == cm.TimedOut, ev.Kind == cm.Unreachable, ev.Kind == cm.Disconnected:
			c.peerDone = true
			if c.link != nil {
				lost = append(lost, lostLink{link: c.link, gone: ev.Reason == wire.RejectStale, finalAck: ev.Private})
			}
		}
		select {
		case c.events <- ev:
		default: // the consumer no longer waits for events
		}
	}
	return lost, asked
}

// sendMADs sends the manager's pending MADs.
//
// +checklocks:e.mu
func (e *endpoint) sendMADs(now time.Duration) {
	d := &e.datagram
	for e.manager.Emit(d) {
		to, err := e.port.Peer(d.To)
		if err != nil {
			continue // not a peer address
		}
		b := d.Bytes[:]
		packet := rc.Packet{Header: b, Trailer: make([]byte, wire.ICRCSize), Size: len(b) + wire.ICRCSize}
		if err := e.cmShard.Send([]port.Span{{To: to, Packets: []rc.Packet{packet}}}); err != nil {
			e.counters.failedSends.Add(1)
			e.manager.Unreachable(d.To, now)
		}
	}
}

// madRounds bounds the packets of one call, so that a flood from
// unauthenticated peers cannot starve the shards.
const madRounds = 64

// receiveMADs receives packets for the manager. The port may hold packets that
// its file descriptor does not signal, until Receive returns 0; receiveMADs
// returns false if it stopped earlier.
func (e *endpoint) receiveMADs() bool {
	for range madRounds {
		if e.receiveMADBatch() == 0 {
			return true
		}
	}
	return false
}

// receiveMADBatch receives one batch and returns its number of packets.
func (e *endpoint) receiveMADBatch() (n int) {
	var misrouted []*shard
	e.withManager(func(m *cm.Manager, now time.Duration) {
		var err error
		if n, err = e.cmShard.Receive(e.arrivals[:]); err != nil {
			e.counters.failedReceives.Add(1)
			n = 0
		}
		for i := range n {
			if to := e.dispatchMAD(&e.arrivals[i], now); to != nil { // +checklocksfail
				misrouted = append(misrouted, to)
			}
		}
		if e.misroutedIn.filled.Load() {
			e.misroutedIn.drain(func(d *packetCopy) {
				e.handleMAD(d.from, d.bytes[:d.size], now) // +checklocksfail
			})
		}
		m.Timeout(now)
	})
	for _, s := range misrouted {
		s.run()
	}
	return n
}

// dispatchMAD handles a packet that arrived at shard 0. If the packet belongs
// to another shard, it returns that shard, which must then drain its queue.
//
// +checklocks:e.mu
func (e *endpoint) dispatchMAD(a *port.Arrival, now time.Duration) *shard {
	qpn, _ := a.DestQP()
	to := e.shardOf(qpn)
	switch {
	case qpn != wire.GSI && to == nil:
		e.counters.unknown.Add(1)
		if isDeniable(qpn) && e.denials.allow(now) && e.cmShard.Intact(a) {
			e.deny(e.manager, a.From, a.Bytes)
		}
	case !e.cmShard.Intact(a):
		e.counters.damaged.Add(1)
	case qpn == wire.GSI:
		e.handleMAD(a.From, a.Bytes, now)
	case !to.misroutedIn.put(a):
		e.counters.queueFull.Add(1)
	default:
		e.counters.misrouted.Add(1)
		return to
	}
	return nil
}

// handleMAD hands a packet to the manager.
//
// +checklocks:e.mu
func (e *endpoint) handleMAD(from netip.AddrPort, b []byte, now time.Duration) {
	if r := e.packet.Decode(b, wire.DefaultPKey); r != wire.Accepted {
		e.counters.refused[r].Add(1)
		return
	}
	e.manager.Receive(from, &e.packet, now)
}

// forwardMAD queues a packet for queue pair 1 that arrived at another shard.
// That shard has checked the ICRC.
func (e *endpoint) forwardMAD(a *port.Arrival) bool {
	if !e.misroutedIn.put(a) {
		return false
	}
	e.poller.interrupt()
	return true
}

// newConn registers a connection for the manager's events.
//
// +checklocks:e.mu
func (e *endpoint) newConn(id cm.ID, l *link) *cmConn {
	c := &cmConn{id: id, events: make(chan cm.Event, handshakeEvents), link: l}
	e.conns[id] = c
	if l != nil {
		c.qpn = l.qpn
		l.handshake.id = id
	}
	return c
}

// establish tells the connection manager of a packet that arrived before the
// RTU: communication established.
func (e *endpoint) establish(id cm.ID) {
	e.withManager(func(m *cm.Manager, now time.Duration) {
		if m.Establish(id, now) != nil {
			return // the connection has ended
		}
		if c := e.conns[id]; c != nil {
			c.established = true
			select {
			case c.events <- cm.Event{Kind: cm.Established, ID: id}:
			default: // the consumer does not wait for it
			}
		}
	})
}

// disconnect ends the connection of a closed link, and releases its resources.
func (e *endpoint) disconnect(l *link, finalAck []byte) {
	e.withManager(func(m *cm.Manager, now time.Duration) {
		c := e.conns[l.handshake.id]
		if c == nil || c.link != l {
			delete(e.numbers, l.qpn)
			return
		}
		c.link = nil
		c.peerDone = c.peerDone || !c.established
		if !c.disconnecting {
			c.disconnecting = true
			m.DisconnectWith(c.id, finalAck, now)
		}
	})
	e.forget(l)
	e.release()
}

// forget counts one link less of a completion queue's shard.
func (e *endpoint) forget(l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unassign(l.cfg.RecvCQ.(*cq))
}
