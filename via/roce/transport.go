package roce

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// transport is the part of a link that only the owner of its shard accesses:
// the queue pair with its works, timer and completions.
//
//	made ── insert ─▶ entered ── equip, start ──▶ live ── remove ──▶ closed
type transport struct {
	link        *link
	stage       stage
	qp          *rc.QP // nil before equip
	route       route
	sends       entries[sendEntry]
	receives    entries[receiveEntry]
	early       earlyPackets
	schedule    schedule
	completions completions
	life        uint64         // that the link tells
	faults      *faultInjector // nil without faults
	stats       via.LinkStats
	last        *rc.Counters // of a closed link
}

// stage is how far a link is.
type stage int

const (
	made    stage = iota
	entered       // in the table; packets of the peer are kept
	live          // started
	closed
)

// route is the path to the peer.
type route struct {
	from    netip.AddrPort
	anyPort bool   // the peer chooses its port: not viablk
	port    uint16 // that it has chosen; 0 before its first packet in turn
	tag     uint64 // of its packets; 0: they have none
	to      port.Peer
	mtu     wire.MTU
}

// accepts reports whether an address is a valid source for packets of the peer.
func (r *route) accepts(from netip.AddrPort) bool {
	if !r.anyPort {
		return from == r.from
	}
	return from.Addr() == r.from.Addr() && (r.port == 0 || r.port == from.Port())
}

// isTagged reports whether a packet has the tag of the connection, if that has
// tags.
func (r *route) isTagged(b []byte) bool { return r.tag == 0 || wire.HasTag(b, r.tag) }

// untag returns a packet without its tag.
func (r *route) untag(b []byte) []byte {
	if r.tag == 0 {
		return b
	}
	return wire.Untag(b)
}

// schedule is when an engine attends to a queue pair next.
type schedule struct {
	due           time.Duration // deadline of its timers
	transmits     bool          // it is in the transmit queue
	nextTransmits *transport    // in that queue
	nextFinishes  *transport    // in the list of a pass
}

func (t *transport) init(l *link) {
	t.link = l
	t.schedule.due = never
	t.completions.code = via.AsyncConnectionLost
}

// insert adds a link to the table.
func (g *engine) insert(t *transport, r route) {
	t.route, t.stage = r, entered
	g.table.add(t.link.qpn, t)
}

// equip creates the queue pair of a link.
func (g *engine) equip(t *transport) (err error) {
	l := t.link
	if l.cfg.Faults != nil {
		t.faults = &faultInjector{transport: t}
		t.faults.icrc.Set(l.endpoint.local, t.route.from)
	}
	g.allocate()
	t.qp, err = rc.New(l.qpConfig(g.stash), t)
	return err
}

// earlyPackets are copies of the packets of the peer that arrive before Start.
type earlyPackets struct {
	packets  []earlyPacket
	bytes    int
	reported bool // to the connection manager, whose RTU they replace
}

// earlyPacket is one of them.
type earlyPacket struct {
	bytes []byte
	port  uint16 // its source port
}

// earlyLimit bounds the early packets of a link, in bytes.
const earlyLimit = 1 << 20

// keepEarly keeps a packet until the link is started.
func (g *engine) keepEarly(t *transport, b []byte, port uint16) {
	k := &t.early
	if k.bytes+len(b) > earlyLimit {
		g.shard.counters.queueFull.Add(1)
		return
	}
	k.packets = append(k.packets, earlyPacket{append([]byte(nil), b...), port})
	k.bytes += len(b)
	if !k.reported {
		k.reported = true
		t.link.endpoint.establish(t.link.handshake.id)
	}
}

// start makes a link live, and processes its early packets.
func (g *engine) start(t *transport, b *bound) {
	t.stage = live
	g.started = append(g.started, t)
	g.attach(t, b)
	early := t.early.packets
	t.early = earlyPackets{reported: true}
	now := clock()
	for _, p := range early {
		g.accept(t, p.bytes, p.port, now)
	}
	g.shard.schedule(t.link) // for the receives, and a peer that has disconnected
	g.pass(now, skipReceive)
}

// update records the deadline of a queue pair, and lists its completions.
func (g *engine) update(t *transport) {
	t.schedule.due = never
	if at, ok := t.qp.Deadline(); ok {
		t.schedule.due = at
		if at < time.Duration(g.shard.activity.due.Load()) {
			g.shard.activity.due.Store(int64(at))
		}
	}
	if life := t.qp.Life(); life != t.life {
		t.life = life
		t.link.life.Store(life)
	}
	t.listCompletions()
}

// finish moves a queue pair to the error state after the peer has disconnected
// and all packets received before are processed. The final ack stands for
// acknowledgements that were lost: an AETH, ACK or NAK, and its PSN.
func (g *engine) finish(t *transport, now time.Duration) {
	d, p := t.link.notices.disconnected.Load(), &g.packet
	if len(d.finalAck) == finalAckSize && t.link.cfg.Reliability != via.UnreliableDelivery {
		p.BTH = wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: t.link.qpn}
		p.PSN = wire.PSN(binary.BigEndian.Uint32(d.finalAck[wire.AETHSize:]) & (1<<24 - 1))
		p.AETH.Decode(d.finalAck)
		if p.AETH.Syndrome.Kind() != wire.KindReserved {
			t.handOverPosts()
			t.qp.Receive(p, wire.Accepted, now)
		}
	}
	d.finalAck = nil
	t.handOverPosts() // an incomplete message consumes a receive
	if d.gone {
		t.qp.GiveUp()
	}
	t.qp.Break()
	g.scheduleSend(t)
}

// finalAckSize is the length of a final ack: an AETH and its PSN, 4 bytes. A
// DREQ carries it as private data.
const finalAckSize = wire.AETHSize + 4

// encodeFinalAck encodes the final ack of this end.
func (t *transport) encodeFinalAck() []byte {
	h, psn := t.qp.FinalAck()
	b := make([]byte, finalAckSize)
	h.Encode(b)
	binary.BigEndian.PutUint32(b[wire.AETHSize:], uint32(psn))
	return b
}

// remove closes a link, once: its works are the consumer's again. It returns
// the final ack of this end.
func (g *engine) remove(t *transport) (finalAck []byte) {
	t.stage = closed
	g.table.remove(t.link.qpn)
	if t.qp != nil {
		counters := t.qp.Counters()
		t.last = &counters
		g.keepStatistics(t.statistics())
		finalAck = t.encodeFinalAck()
		t.qp.Break() // returns stash buffers of the engine
	}
	if t.schedule.transmits {
		g.transmitQueue.remove(t)
		t.schedule.transmits = false
	}
	for i, k := range g.started {
		if k == t {
			last := len(g.started) - 1
			g.started[i] = g.started[last]
			g.started[last] = nil
			g.started = g.started[:last]
			break
		}
	}
	t.unlistReports()
	t.early.packets = nil
	return finalAck
}

// totals returns the counters of the link since it was made.
func (t *transport) totals() via.LinkStats {
	s, c := t.stats, t.counters()
	s.BytesCopied, s.Records = c.Copied, c.Sent
	s.Dropped = c.Dropped + c.DuplicateSends
	return s
}

// counters returns the counters of the queue pair, which are zero before equip.
func (t *transport) counters() rc.Counters {
	switch {
	case t.last != nil:
		return *t.last
	case t.qp != nil:
		return t.qp.Counters()
	}
	return rc.Counters{}
}
