package regcache

import "sync/atomic"

// counters are added to on misses and below, never on a hit.
type counters struct {
	misses, coalesced, overBudget atomic.Uint64
	registrations                 atomic.Uint64
	registerFailures              atomic.Uint64
	deregistrations               atomic.Uint64
	deregisterFailures            atomic.Uint64
	refused                       atomic.Uint64
	evicted                       atomic.Uint64
	reclaimed                     atomic.Uint64
	invalidated                   atomic.Uint64
	peak                          atomic.Int64 // regions
}

// peaked keeps the highest number of regions seen.
func (c *counters) peaked(n int64) {
	for {
		peak := c.peak.Load()
		if n <= peak || c.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// Stats describe a cache. The counters only grow; each is exact, though not all
// are of the same instant.
type Stats struct {
	Hits       uint64 // leases of a registration that was there
	Coalesced  uint64 // of them, found while waiting to register the same
	Misses     uint64 // leases that registered
	OverBudget uint64 // requests answered ErrBudget for want of idle registrations

	Registrations      uint64
	RegisterFailures   uint64 // errors of the NIC
	Deregistrations    uint64 // those with an error included
	DeregisterFailures uint64

	Refused     uint64 // registrations that the policy did not take
	Evicted     uint64 // given up by the policy
	Reclaimed   uint64 // given up by the sweep, for room
	Invalidated uint64 // given up by Invalidate and Close

	Regions       int   // registered or being so
	LeasedRegions int   // of them, leased
	MaxRegions    int   // the budget
	PeakRegions   int   // the most there were
	Bytes         int64 // registered or being so
	MaxBytes      int64 // the budget
}

// Stats returns the cache's counters.
func (c *Cache) Stats() Stats {
	n := &c.count
	hits, leased := c.live.hits()
	regions := c.reserved.Load()
	return Stats{
		Hits:               hits,
		Coalesced:          n.coalesced.Load(),
		Misses:             n.misses.Load(),
		OverBudget:         n.overBudget.Load(),
		Registrations:      n.registrations.Load(),
		RegisterFailures:   n.registerFailures.Load(),
		Deregistrations:    n.deregistrations.Load(),
		DeregisterFailures: n.deregisterFailures.Load(),
		Refused:            n.refused.Load(),
		Evicted:            n.evicted.Load(),
		Reclaimed:          n.reclaimed.Load(),
		Invalidated:        n.invalidated.Load(),
		Regions:            int(regions),
		LeasedRegions:      leased,
		MaxRegions:         c.budget,
		PeakRegions:        int(n.peak.Load()),
		Bytes:              regions << c.shift,
		MaxBytes:           int64(c.budget) << c.shift,
	}
}
