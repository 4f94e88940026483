package roce

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// misroutedLimit bounds the packets in a misroutedQueue.
const misroutedLimit = 256

// packetCopy is a copy of an intact packet that arrived at another shard.
type packetCopy struct {
	from  netip.AddrPort
	size  int
	bytes [wire.MaxPacket]byte
}

// misroutedQueue holds packets that arrived at the wrong shard: the kernel
// steers a coalesced run by its first packet, and at random while shards are
// not open. Both are rare, so the queue allocates on demand. Any goroutine may
// put:
//
//  1. routeElsewhere finds the shard of a packet whose QPN the engine does not
//     have, checks the ICRC, and copies the packet to the queue
//  2. runMisrouted has the owner of that shard run a pass, or runs one
//  3. the pass drains the queue: acceptMisrouted checks source and tag, and
//     executes the packet; the queue has the copy back for the next one
type misroutedQueue struct {
	filled atomic.Bool

	mu sync.Mutex
	// +checklocks:mu
	packets []*packetCopy
	// +checklocks:mu
	free []*packetCopy
}

// put copies a packet. It returns false if the queue is full.
func (b *misroutedQueue) put(a *port.Arrival) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.packets) == misroutedLimit {
		return false
	}
	var d *packetCopy
	if n := len(b.free); n > 0 {
		d = b.free[n-1]
		b.free = b.free[:n-1]
	} else {
		d = new(packetCopy)
	}
	d.from, d.size = a.From, copy(d.bytes[:], a.Bytes)
	b.packets = append(b.packets, d)
	b.filled.Store(true)
	return true
}

// drain calls do with each packet queued now.
func (b *misroutedQueue) drain(do func(*packetCopy)) {
	b.mu.Lock()
	packets := b.packets
	b.packets = nil
	b.filled.Store(false)
	b.mu.Unlock()
	for _, d := range packets {
		do(d)
	}
	b.mu.Lock()
	b.free = append(b.free, packets...)
	b.mu.Unlock()
}

// routeElsewhere routes a packet for a queue pair that is not this shard's.
func (g *engine) routeElsewhere(a *port.Arrival, qpn uint32) {
	to := g.shard.endpoint.shardOf(qpn)
	switch {
	case qpn != wire.GSI && (to == nil || to == g.shard):
		g.shard.counters.unknown.Add(1)
		g.denyUnknown(a, qpn)
	case !g.port.Intact(a):
		g.shard.counters.damaged.Add(1)
	case qpn == wire.GSI:
		if !g.shard.endpoint.forwardMAD(a) {
			g.shard.counters.queueFull.Add(1)
		}
	case !to.misroutedIn.put(a):
		g.shard.counters.queueFull.Add(1)
	default:
		g.shard.counters.misrouted.Add(1)
		g.misrouted = append(g.misrouted, to)
	}
}

// runMisrouted makes other shards drain their misrouted queues. It does not
// wait: the owner of a shard runs another pass before it releases it.
func (g *engine) runMisrouted() {
	for i, to := range g.misrouted {
		if i == 0 || to != g.misrouted[i-1] {
			to.run()
		}
	}
	clear(g.misrouted)
	g.misrouted = g.misrouted[:0]
}

// acceptMisrouted handles a packet from the misrouted queue.
func (g *engine) acceptMisrouted(d *packetCopy, now time.Duration) {
	b := d.bytes[:d.size]
	qpn, _ := (&port.Arrival{Bytes: b}).DestQP()
	switch t := g.table.find(qpn); {
	case t == nil:
		g.shard.counters.unknown.Add(1)
		if e := g.shard.endpoint; e.denials.allow(now) {
			e.withManager(func(m *cm.Manager, _ time.Duration) { e.deny(m, d.from, b) })
		}
	case !t.route.accepts(d.from), !t.route.isTagged(b):
		g.shard.counters.badSource.Add(1)
	default:
		g.accept(t, b, d.from.Port(), now)
	}
}
