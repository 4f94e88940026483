package roce

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// conversation is what the connection manager calls a connection, and who wants
// to hear of it. Its fields are guarded by endpoint.mu.
type conversation struct {
	id     cm.ID
	events chan cm.Event // of the handshake
	link   *link         // once there is one
	qpn    uint32        // free when the conversation is; 0 is none
	works  bool          // the handshake is complete
	ending bool          // this end has disconnected
	over   bool          // the peer has nothing to hear any more
}

// handshakeEvents is how many events a handshake has at most, and more.
const handshakeEvents = 4

// loss is a link whose peer has gone, and what that said last.
type loss struct {
	link *link
	word []byte
}

// consult does something with the connection manager, sends what that brings
// about, and tells those whom it concerns.
func (e *endpoint) consult(do func(m *cm.Manager, now time.Duration)) {
	e.mu.Lock()
	now := clock()
	do(e.manager, now)
	e.say(now)
	lost, asked := e.listenTo()
	if at, ok := e.manager.Deadline(); ok && at < e.wakesAt {
		e.wakesAt = at
		e.waiting.ring()
	}
	e.mu.Unlock()
	for _, x := range lost {
		x.link.lose(x.word)
	}
	for _, r := range asked {
		r.listening.submit(r)
	}
}

// listenTo takes the manager's events.
//
// +checklocks:e.mu
func (e *endpoint) listenTo() (lost []loss, asked []*request) {
	for ev := (cm.Event{}); e.manager.Poll(&ev); {
		c := e.conversations[ev.ID]
		switch {
		case ev.Kind == cm.Requested:
			if r := e.requested(ev); r != nil {
				asked = append(asked, r)
			}
			continue
		case c == nil:
			continue
		case ev.Kind == cm.Released:
			delete(e.conversations, ev.ID)
			delete(e.numbers, c.qpn)
			continue
		case ev.Kind == cm.Established:
			c.works = true
		case ev.Kind == cm.Rejected, ev.Kind == cm.TimedOut, ev.Kind == cm.Unreachable, ev.Kind == cm.Disconnected:
			c.over = true
			if c.link != nil {
				lost = append(lost, loss{c.link, ev.Private})
			}
		}
		select {
		case c.events <- ev:
		default: // nobody waits for them any more
		}
	}
	return lost, asked
}

// say sends what the manager has to say.
//
// +checklocks:e.mu
func (e *endpoint) say(now time.Duration) {
	d := &e.datagram
	for e.manager.Emit(d) {
		to, err := e.port.Peer(d.To)
		if err != nil {
			continue // nobody has such an address
		}
		b := d.Bytes[:]
		packet := rc.Packet{Header: b, Trailer: make([]byte, wire.ICRCSize), Size: len(b) + wire.ICRCSize}
		if err := e.lane.Send([]port.Span{{To: to, Packets: []rc.Packet{packet}}}); err != nil {
			e.tally.failedSends.Add(1)
			e.manager.Unreachable(d.To, now)
		}
	}
}

// hearRounds bounds the packets that are heard at a time, so that strangers who
// send without end cannot keep lanes from being attended.
const hearRounds = 64

// hear takes what has come for the manager. The port may hold packets that no
// file descriptor tells of, until it says that there are none; it returns false if
// it has not come so far.
func (e *endpoint) hear() bool {
	for range hearRounds {
		if e.hearSome() == 0 {
			return true
		}
	}
	return false
}

// hearSome takes a batch, and returns how many packets that was.
func (e *endpoint) hearSome() (n int) {
	var strays []*lane
	e.consult(func(m *cm.Manager, now time.Duration) {
		var err error
		if n, err = e.lane.Receive(e.arrivals[:]); err != nil {
			e.tally.failedReceives.Add(1)
			n = 0
		}
		for i := range n {
			if to := e.heard(&e.arrivals[i], now); to != nil {
				strays = append(strays, to)
			}
		}
		if e.inbox.filled.Load() {
			e.inbox.drain(func(d *letter) { e.told(d.from, d.bytes[:d.size], now) })
		}
		m.Timeout(now)
	})
	for _, l := range strays {
		l.serve()
	}
	return n
}

// heard deals with a packet that arrived at lane 0. If it belongs to another one
// that is to look into its inbox.
//
// +checklocks:e.mu
func (e *endpoint) heard(a *port.Arrival, now time.Duration) *lane {
	qpn, _ := a.DestQP()
	to := e.laneOf(qpn)
	switch {
	case qpn != wire.GSI && to == nil:
		e.tally.unknown.Add(1)
	case !e.lane.Intact(a):
		e.tally.damaged.Add(1)
	case qpn == wire.GSI:
		e.told(a.From, a.Bytes, now)
	case !to.inbox.put(a):
		e.tally.crowded.Add(1)
	default:
		e.tally.strays.Add(1)
		return to
	}
	return nil
}

// told hands a packet to the manager.
//
// +checklocks:e.mu
func (e *endpoint) told(from netip.AddrPort, b []byte, now time.Duration) {
	if r := e.packet.Decode(b, wire.DefaultPKey); r != wire.Accepted {
		e.tally.refused[r].Add(1)
		return
	}
	e.manager.Receive(from, &e.packet, now)
}

// deliver takes a packet to queue pair 1 that arrived at another lane. Its
// checksum is that lane's to check.
func (e *endpoint) deliver(a *port.Arrival) bool {
	if !e.inbox.put(a) {
		return false
	}
	e.waiting.ring()
	return true
}

// converse begins to listen to what becomes of a connection.
//
// +checklocks:e.mu
func (e *endpoint) converse(id cm.ID, l *link) *conversation {
	c := &conversation{id: id, events: make(chan cm.Event, handshakeEvents), link: l}
	e.conversations[id] = c
	if l != nil {
		c.qpn = l.qpn
		l.id = id
	}
	return c
}

// establish says that a connection works, because a packet has come.
func (e *endpoint) establish(id cm.ID) {
	e.consult(func(m *cm.Manager, now time.Duration) {
		if m.Establish(id, now) != nil {
			return // it is over meanwhile
		}
		if c := e.conversations[id]; c != nil {
			c.works = true
			select {
			case c.events <- cm.Event{Kind: cm.Established, ID: id}:
			default: // nobody waits for it
			}
		}
	})
}

// forsake ends the connection of a link that is closed, and gives back what it
// had.
func (e *endpoint) forsake(l *link) {
	e.consult(func(m *cm.Manager, now time.Duration) {
		c := e.conversations[l.id]
		if c == nil || c.link != l {
			delete(e.numbers, l.qpn)
			return
		}
		c.link = nil
		c.over = c.over || !c.works
		if !c.ending {
			c.ending = true
			m.DisconnectWith(c.id, l.farewell, now)
		}
	})
	e.unassign(l.cfg.RecvCQ.(*cq))
	e.release()
}
