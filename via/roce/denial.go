package roce

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// denials limits how many packets for queue pairs that do not exist an endpoint
// answers. The answer goes to the address that the packet gives as its source,
// and is longer: it must not serve for attacks on other hosts.
type denials struct {
	spent atomic.Int64 // clock at which the rate allows as many as there were
}

// Rate of denials: as many as Linux sends ICMP messages.
const (
	denialInterval = time.Millisecond
	denialBurst    = 128
)

// allow reports whether one more packet may be answered now.
func (d *denials) allow(now time.Duration) bool {
	spent := d.spent.Load()
	next := max(spent, int64(now)) + int64(denialInterval)
	return next <= int64(now+denialBurst*denialInterval) && d.spent.CompareAndSwap(spent, next)
}

// deny answers an intact packet for a queue pair that does not exist, so that a
// viablk peer learns at once that its connection is gone, as after a restart of
// this process. A number that is taken is that of a connection which begins or
// ends: its own messages tell more.
func (e *endpoint) deny(m *cm.Manager, from netip.AddrPort, b []byte) {
	qpn, _ := (&port.Arrival{Bytes: b}).DestQP()
	tag, ok := wire.LastTag(b)
	if _, taken := e.numbers[qpn]; ok && !taken { // +checklocksignore: with the manager
		m.Deny(from, qpn, tag)
	}
}

// denyUnknown denies the queue pair of a packet that arrived at a shard.
func (g *engine) denyUnknown(a *port.Arrival, qpn uint32) {
	e := g.shard.endpoint
	if !isDeniable(qpn) || !e.denials.allow(clock()) || !g.port.Intact(a) {
		return
	}
	e.withManager(func(m *cm.Manager, _ time.Duration) { e.deny(m, a.From, a.Bytes) })
}

// isDeniable reports whether a number is that of a queue pair of connections.
func isDeniable(qpn uint32) bool { return qpn != wire.SMI && qpn != wire.GSI }
