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

// tally are the counters of a lane while they run.
type tally struct {
	unknown        atomic.Uint64
	forged         atomic.Uint64
	damaged        atomic.Uint64
	strays         atomic.Uint64
	crowded        atomic.Uint64
	failedSends    atomic.Uint64
	failedReceives atomic.Uint64
	refused        [wire.NumRefusals]atomic.Uint64
}

func (t *tally) counters() LaneCounters {
	c := LaneCounters{
		Unknown: t.unknown.Load(), Forged: t.forged.Load(), Damaged: t.damaged.Load(),
		Strays: t.strays.Load(), Crowded: t.crowded.Load(),
		Errors: t.failedSends.Load() + t.failedReceives.Load(),
	}
	for i := range t.refused {
		c.Refused += t.refused[i].Load()
	}
	return c
}

// EndpointStatistics are what an endpoint is and did.
type EndpointStatistics struct {
	Local    netip.AddrPort
	Offloads port.Offloads
	Manager  cm.Counters   // of the connection manager
	CMPort   port.Counters // of its lane
	CM       LaneCounters  // of that lane
	Lanes    []LaneStatistics
}

// LaneCounters count what a lane took and no link got. At the connection manager's
// lane a packet for it is for a link, too.
type LaneCounters struct {
	Unknown uint64 // packets for queue pairs that there are not
	Forged  uint64 // packets for a link that its peer did not send
	Damaged uint64 // packets with a wrong ICRC, for a link
	Strays  uint64 // packets that belong to other lanes
	Crowded uint64 // packets that found no room while they waited
	Refused uint64 // packets that no queue pair takes
	Errors  uint64 // system calls that failed
}

// LaneStatistics are what a lane did, and its links.
type LaneStatistics struct {
	Port port.Counters

	Turns uint64 // that were taken
	LaneCounters

	Links  []LinkStatistics
	Recent []LinkStatistics // links that were closed last, the oldest first; 8 at most
}

// LinkStatistics are one end of a connection and what it did.
type LinkStatistics struct {
	QP          uint32
	Peer        netip.AddrPort
	Own         bool // the peer is of our own kind
	MTU         int  // most payload of a packet, bytes
	Reliability via.ReliabilityLevel
	Counters    rc.Counters
}

// Statistics returns what the endpoints of the provider did, by address.
func (p *Provider) Statistics() []EndpointStatistics {
	var out []EndpointStatistics
	for _, e := range *p.all.Load() {
		out = append(out, e.statistics())
	}
	slices.SortFunc(out, func(a, b EndpointStatistics) int { return a.Local.Compare(b.Local) })
	return out
}

func (e *endpoint) statistics() EndpointStatistics {
	s := EndpointStatistics{Local: e.local, Offloads: e.port.Offloads(), CMPort: e.lane.Counters(), CM: e.tally.counters()}
	e.mu.Lock()
	s.Manager = e.manager.Counters()
	e.mu.Unlock()
	for _, l := range *e.lanes.Load() {
		s.Lanes = append(s.Lanes, l.statistics())
	}
	return s
}

// statistics takes the turn of the lane for a moment.
func (l *lane) statistics() LaneStatistics {
	s := LaneStatistics{Port: l.port.Counters(), Turns: l.ended.Load(), LaneCounters: l.tally.counters()}
	l.take()
	defer l.give()
	for _, k := range l.table.slots {
		if k != nil {
			s.Links = append(s.Links, k.statistics())
		}
	}
	s.Recent = slices.Clone(l.recent)
	return s
}

// statistics belongs to who has the turn.
func (l *link) statistics() LinkStatistics {
	return LinkStatistics{
		QP: l.qpn, Peer: l.from, Own: !l.anyPort, MTU: l.mtu.Bytes(),
		Reliability: l.cfg.Reliability, Counters: l.qp.Counters(),
	}
}

// recentLinks is how many links a lane remembers that are closed.
const recentLinks = 8

// remember keeps the statistics of a link that is being closed.
func (l *lane) remember(s LinkStatistics) {
	if len(l.recent) == recentLinks {
		l.recent = slices.Delete(l.recent, 0, 1)
	}
	l.recent = append(l.recent, s)
}
