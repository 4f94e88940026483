package roce

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// shardCounters are the live counters of a shard.
type shardCounters struct {
	unknown        atomic.Uint64
	badSource      atomic.Uint64
	damaged        atomic.Uint64
	misrouted      atomic.Uint64
	queueFull      atomic.Uint64
	failedSends    atomic.Uint64
	failedReceives atomic.Uint64
	refused        [wire.NumRefusals]atomic.Uint64
}

func (t *shardCounters) snapshot() ShardCounters {
	c := ShardCounters{
		Unknown: t.unknown.Load(), BadSource: t.badSource.Load(), Damaged: t.damaged.Load(),
		Misrouted: t.misrouted.Load(), QueueFull: t.queueFull.Load(),
		Errors: t.failedSends.Load() + t.failedReceives.Load(),
	}
	for i := range t.refused {
		c.Refused += t.refused[i].Load()
	}
	return c
}

// EndpointStatistics are the properties and counters of an endpoint.
type EndpointStatistics struct {
	Local    netip.AddrPort
	Offloads port.Offloads
	Manager  cm.Counters   // the connection manager's
	CMPort   port.Counters // the connection manager's shard
	CM       ShardCounters // the same shard
	Shards   []ShardStatistics
}

// ShardCounters count packets that a shard received but handed to no link. At
// shard 0 the connection manager counts as a link.
type ShardCounters struct {
	Unknown   uint64 // packets for QPNs that no link has
	BadSource uint64 // packets for a link from another source, or without its tag
	Damaged   uint64 // packets with a wrong ICRC, for a link
	Misrouted uint64 // packets that belong to other shards
	QueueFull uint64 // packets dropped because a queue was full
	Refused   uint64 // packets whose BTH or extension headers are invalid
	Errors    uint64 // system calls that failed
}

// ShardStatistics are the counters of a shard and its links.
type ShardStatistics struct {
	Port port.Counters

	Passes uint64 // completed passes
	ShardCounters

	Links  []LinkStatistics
	Recent []LinkStatistics // last closed links, oldest first; 8 at most

	Retransmitted uint64 // packets of all links ever
}

// LinkStatistics are the properties and counters of one end of a connection.
type LinkStatistics struct {
	QP          uint32
	Peer        netip.AddrPort
	SameKind    bool // the peer is viablk too
	MTU         int  // path MTU: payload bytes per packet
	Reliability via.ReliabilityLevel
	Counters    rc.Counters
}

// Statistics returns the statistics of the provider's endpoints, by address.
func (p *Provider) Statistics() []EndpointStatistics {
	var out []EndpointStatistics
	for _, e := range *p.all.Load() {
		out = append(out, e.statistics())
	}
	slices.SortFunc(out, func(a, b EndpointStatistics) int { return a.Local.Compare(b.Local) })
	return out
}

func (e *endpoint) statistics() EndpointStatistics {
	out := EndpointStatistics{Local: e.local, Offloads: e.port.Offloads(), CMPort: e.cmShard.Counters(), CM: e.counters.snapshot()}
	e.mu.Lock()
	out.Manager = e.manager.Counters()
	e.mu.Unlock()
	for _, s := range *e.shards.Load() {
		out.Shards = append(out.Shards, s.statistics())
	}
	return out
}

// statistics acquires the shard briefly.
func (s *shard) statistics() ShardStatistics {
	out := ShardStatistics{Port: s.port.Counters(), Passes: s.ownership.passes.Load(), ShardCounters: s.counters.snapshot()}
	_ = s.asOwner(func(g *engine) { // a failed shard has none
		out.Retransmitted = g.retransmitted
		for _, b := range g.table.buckets {
			if b.transport != nil {
				l := b.transport.statistics()
				out.Links = append(out.Links, l)
				out.Retransmitted += l.Counters.Retransmitted
			}
		}
		out.Recent = slices.Clone(g.recent)
	})
	return out
}

func (t *transport) statistics() LinkStatistics {
	return LinkStatistics{
		QP: t.link.qpn, Peer: t.route.from, SameKind: !t.route.anyPort, MTU: t.route.mtu.Bytes(),
		Reliability: t.link.cfg.Reliability, Counters: t.counters(),
	}
}

// recentLinks is how many closed links a shard keeps statistics of.
const recentLinks = 8

// keepStatistics records the statistics of a link that closes.
func (g *engine) keepStatistics(stats LinkStatistics) {
	if len(g.recent) == recentLinks {
		g.recent = slices.Delete(g.recent, 0, 1)
	}
	g.recent = append(g.recent, stats)
	g.retransmitted += stats.Counters.Retransmitted
}
