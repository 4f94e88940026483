package roce

import (
	"time"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
)

// burstPackets bounds the packets of one call of the port's Send.
const burstPackets = 128

// transmit sends one burst of each queued queue pair:
//
//  1. Emit has the queue pair append its packets to the burst, which owns their
//     headers; payload stays in the memory of the works
//  2. add appends them to the spans, one for each destination in a row
//  3. update sets the timer and lists completions
//  4. flush has the port seal and send the spans: it reads the payload, and
//     keeps nothing
func (g *engine) transmit(now time.Duration) {
	o := &g.output
	if g.transmitQueue.count == 0 {
		return
	}
	for n := g.transmitQueue.count; n > 0; n-- {
		t := g.transmitQueue.pop()
		t.schedule.transmits = false
		before := len(o.burst.Packets())
		if !o.extends(t) {
			o.burst.Apart()
		}
		t.qp.Emit(o.burst, now)
		packets := o.burst.Packets()[before:]
		full := before+len(packets) == burstPackets
		if full {
			g.scheduleSend(t)
			g.more = true
		}
		if len(packets) > 0 {
			o.add(t, packets)
		}
		g.update(t)
		if full {
			o.flush()
		}
	}
	o.flush()
}

// scheduleSend queues a queue pair for transmission in this pass.
func (g *engine) scheduleSend(t *transport) {
	if !t.schedule.transmits && t.stage == live {
		t.schedule.transmits = true
		g.transmitQueue.push(t)
	}
}

// scheduleSendFirst is scheduleSend for a queue pair with new works: it
// transmits before those that may only have an acknowledgement to send, because
// a short packet can end a run but not continue it.
func (g *engine) scheduleSendFirst(t *transport) {
	if !t.schedule.transmits && t.stage == live {
		t.schedule.transmits = true
		g.transmitQueue.pushFront(t)
	}
}

// output is the packets that a pass sends next.
type output struct {
	port     port.Shard
	counters *shardCounters
	burst    *rc.Burst
	spans    []port.Span
	last     port.Peer // peer of the last span, if the span may grow
	cut      bool      // the fault injector cuts a link
}

func (o *output) init(p port.Shard, c *shardCounters) {
	o.port, o.counters = p, c
	o.burst, o.spans = rc.NewBurst(burstPackets), make([]port.Span, 0, burstPackets)
}

// extends reports whether the packets of a queue pair have the destination of
// the last span, so that they may join one run. A link with faults has spans of
// its own.
func (o *output) extends(t *transport) bool {
	return o.last != nil && t.faults == nil && o.last.Addr() == t.route.to.Addr()
}

// add adds the packets of a queue pair, the last of the burst, to the spans.
func (o *output) add(t *transport, packets []rc.Packet) {
	t.stats.Doorbells++ // a send wakes the peer
	switch {
	case t.faults != nil:
		o.spans, o.last = t.faults.apply(packets, o.spans), nil
		o.cut = o.cut || t.faults.cut
	case o.extends(t):
		span := &o.spans[len(o.spans)-1]
		span.Packets = span.Packets[:len(span.Packets)+len(packets)] // contiguous in the burst
	default:
		o.spans, o.last = append(o.spans, port.Span{To: t.route.to, Packets: packets}), t.route.to
	}
}

// flush sends the spans.
func (o *output) flush() {
	if len(o.spans) > 0 {
		if err := o.port.Send(o.spans); err != nil {
			o.counters.failedSends.Add(1) // like loss in the network
		}
	}
	clear(o.spans)
	o.spans, o.last = o.spans[:0], nil
	o.burst.Reset()
}

// transmitQueue is a FIFO of queue pairs that may have packets to send.
type transmitQueue struct {
	first, last *transport
	count       int
}

func (q *transmitQueue) push(t *transport) {
	t.schedule.nextTransmits = nil
	if q.last == nil {
		q.first = t
	} else {
		q.last.schedule.nextTransmits = t
	}
	q.last = t
	q.count++
}

func (q *transmitQueue) pushFront(t *transport) {
	t.schedule.nextTransmits = q.first
	q.first = t
	if q.last == nil {
		q.last = t
	}
	q.count++
}

func (q *transmitQueue) pop() *transport {
	t := q.first
	q.first = t.schedule.nextTransmits
	t.schedule.nextTransmits = nil
	if q.first == nil {
		q.last = nil
	}
	q.count--
	return t
}

// remove unlinks a queue pair, if it is queued.
func (q *transmitQueue) remove(t *transport) {
	for n := q.count; n > 0; n-- {
		if x := q.pop(); x != t {
			q.push(x)
		}
	}
}
