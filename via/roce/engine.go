package roce

import (
	"time"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// engine is the part of a shard that only its owner accesses. A pass moves
// packets between the port and the queue pairs:
//
//  1. collectPending hands posted works to the queue pairs, which refer to the
//     consumer's memory until the works complete
//  2. receive takes packets from the port, which owns their bytes, and hands
//     each to its queue pair, which copies the payload (receive.go)
//  3. packets that other shards received follow, from memory of their queue
//     (misrouted.go)
//  4. finish breaks the queue pairs whose peers have disconnected: after all
//     that these sent
//  5. expireTimers has queue pairs retransmit
//  6. transmit has each queue pair with something to send make its packets, and
//     sends them (transmit.go); the port reads the works' memory meanwhile
//  7. update lists the completions, which stay in the queue pair until the
//     consumer polls (completion.go)
type engine struct {
	shard    *shard
	port     port.Shard
	table    table
	started  []*transport
	bindings []*cqBinding
	stash    *rc.Stash
	arrivals [receiveBatch]port.Arrival
	packet   wire.Packet

	misrouted     []*shard // shards whose misroutedIn this pass filled
	transmitQueue transmitQueue
	output        output
	sendDeferred  bool // the last pass left transmission to the next
	more          bool // the last pass left work to do

	recent        []LinkStatistics // of closed links
	retransmitted uint64           // packets, of all closed links
}

const (
	stashPackets = 1024 // twice what one peer has in flight
	receiveBatch = 64   // packets per Receive
)

func (g *engine) init(s *shard) { g.shard, g.port = s, s.port }

// allocate makes the memory that queue pairs share, for the first one: requests
// in the names of other hosts open shards that never have one.
func (g *engine) allocate() {
	if g.stash == nil {
		g.stash = rc.NewStash(stashPackets)
		g.output.init(g.port, &g.shard.counters)
	}
}

// How a pass receives packets.
const (
	skipReceive = iota
	// receives what is there, and defers transmission if the consumer may reply
	receiveReady
	// receives until the port is empty: then the file descriptor signals
	// packets
	receiveUntilEmpty
)

// pass moves packets and works once, as [engine] says.
func (g *engine) pass(now time.Duration, receiveMode int) {
	g.more = false
	gone := g.collectPending(now)
	if receiveMode != skipReceive || gone != nil {
		g.receive(now, receiveMode == receiveUntilEmpty || gone != nil)
	}
	if in := &g.shard.misroutedIn; in.filled.Load() {
		in.drain(func(d *packetCopy) { g.acceptMisrouted(d, now) })
	}
	g.runMisrouted()
	for t := gone; t != nil; t = t.schedule.nextFinishes {
		g.finish(t, now)
	}
	if now >= time.Duration(g.shard.activity.due.Load()) {
		g.expireTimers(now)
	}
	if g.sendDeferred = receiveMode == receiveReady && !g.sendDeferred && g.hasCompletions(); !g.sendDeferred {
		g.transmit(now)
	}
	if g.output.cut {
		g.output.cut = false
		g.cutLinks(now)
	}
	g.wakeConsumers()
}

// collectPending hands posts to the queue pairs, and returns those whose peers
// have disconnected.
func (g *engine) collectPending(now time.Duration) (gone *transport) {
	for l := g.shard.pending.removeAll(); l != nil; {
		next := l.notices.removed()
		if t := &l.transport; t.stage == live {
			t.handOverPosts()
			if l.notices.suspected.Load() && l.notices.suspected.Swap(false) {
				t.qp.Probe(now)
			}
			g.scheduleSendFirst(t)
			if l.notices.disconnected.Load() != nil {
				t.schedule.nextFinishes, gone = gone, t
			}
		}
		l = next
	}
	return gone
}

// expireTimers calls Timeout of the queue pairs whose deadlines have passed.
func (g *engine) expireTimers(now time.Duration) {
	next := never
	for _, t := range g.started {
		if t.schedule.due <= now {
			t.schedule.due = never // update sets it after transmission
			t.handOverPosts()
			t.qp.Timeout(now)
			if e := g.shard.endpoint; e.kernel && t.qp.Timeouts() == stillTimeouts {
				e.portChecks.add(t.link, t.route.from, t.qp.Life(), now)
			}
			g.scheduleSend(t)
		}
		next = min(next, t.schedule.due)
	}
	g.shard.activity.due.Store(int64(next))
}

// hasCompletions reports whether a consumer of the shard has completions to
// poll before the shard transmits. A reply that the consumer posts then goes
// out ahead of the acknowledgement, in one system call; without a reply the
// next poll transmits in any case.
func (g *engine) hasCompletions() bool {
	for t := g.transmitQueue.first; t != nil; t = t.schedule.nextTransmits {
		t.listCompletions()
	}
	for _, b := range g.bindings {
		if b.reports.ready.first != nil {
			return true
		}
	}
	return false
}

// wakeConsumers wakes sleeping consumers if the pass left work to do.
func (g *engine) wakeConsumers() {
	for _, b := range g.bindings {
		if b.reports.wakeRequested && g.more {
			b.wake()
		}
	}
}
