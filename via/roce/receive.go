package roce

import (
	"time"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// receiveRounds bounds the packets of a pass to about the capacity of a socket.
const receiveRounds = 16

// receive receives packets until a batch is not full or, if out is set, until
// the port is empty. A packet comes from an unauthenticated host:
//
//  1. dispatch looks up its queue pair number: an unknown one costs no more
//  2. the source has to be the peer of the link, and the tag that of the link
//  3. Intact checks the ICRC
//  4. accept decodes the headers and validates them
//  5. the queue pair executes it, and copies the payload to the memory of a
//     receive or region (rc); the next Receive returns the packet to the port
//  6. scheduleSend has this pass transmit what the queue pair has to answer
func (g *engine) receive(now time.Duration, out bool) {
	g.more = true
	for range receiveRounds {
		n, err := g.port.Receive(g.arrivals[:])
		if err != nil {
			g.shard.counters.failedReceives.Add(1)
			g.more = false
			return
		}
		for i := range n {
			g.dispatch(&g.arrivals[i], now)
		}
		if n == 0 || n < len(g.arrivals) && !out {
			g.more = false
			return
		}
	}
}

// dispatch routes a packet to its queue pair.
func (g *engine) dispatch(a *port.Arrival, now time.Duration) {
	qpn, _ := a.DestQP()
	switch t := g.table.find(qpn); {
	case t == nil:
		g.routeElsewhere(a, qpn)
	case !t.route.accepts(a.From), !t.route.isTagged(a.Bytes):
		g.shard.counters.badSource.Add(1)
	case !g.port.Intact(a):
		g.damaged(t, a.Bytes)
	default:
		g.accept(t, a.Bytes, a.From.Port(), now)
	}
}

// accept processes an intact packet from the peer. The first packet in turn of
// a peer that chooses its source port determines it.
func (g *engine) accept(t *transport, b []byte, port uint16, now time.Duration) {
	p := &g.packet
	refusal := p.Decode(t.route.untag(b), wire.DefaultPKey)
	switch {
	case refusal != wire.Accepted && !refusal.IsInvalidRequest():
		g.shard.counters.refused[refusal].Add(1)
	case t.stage != live:
		g.keepEarly(t, b, port)
	default:
		t.handOverPosts()
		if r := &t.route; r.anyPort && r.port != port {
			if r.port != 0 {
				g.shard.counters.badSource.Add(1) // an early one
				return
			} else if t.qp.Continues(p) {
				r.port = port
			}
		}
		t.qp.Receive(p, refusal, now)
		g.scheduleSend(t)
	}
}

// damaged reports a packet with a wrong ICRC to its queue pair. A size that is
// not a multiple of four bytes shows a truncated packet.
func (g *engine) damaged(t *transport, b []byte) {
	g.shard.counters.damaged.Add(1)
	if t.stage != live {
		return
	}
	var h wire.BTH
	h.Decode(b) // at least wire.MinPacket bytes
	t.handOverPosts()
	t.qp.Damaged(&h, len(b)%4 != 0)
	g.scheduleSend(t)
}
