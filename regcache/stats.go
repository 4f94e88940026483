package regcache

import (
	"sync/atomic"
	"time"
)

// counters are added to on misses and below, never on a hit.
type counters struct {
	misses, coalesced, overBudget atomic.Uint64
	registrations                 atomic.Uint64
	registerFailures              atomic.Uint64
	deregistrations               atomic.Uint64
	deregisterFailures, batches   atomic.Uint64
	refused                       atomic.Uint64
	evicted                       atomic.Uint64
	reclaimed                     atomic.Uint64
	invalidated, revoked          atomic.Uint64
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
	Hits       uint64 `json:"hits"`        // leases of a registration that was there
	Coalesced  uint64 `json:"coalesced"`   // of them, found while waiting to register the same
	Misses     uint64 `json:"misses"`      // leases that registered
	OverBudget uint64 `json:"over_budget"` // requests answered ErrBudget for want of idle registrations

	Registrations      uint64 `json:"registrations"`
	RegisterFailures   uint64 `json:"register_failures"` // errors of the NIC
	Deregistrations    uint64 `json:"deregistrations"`   // those with an error included
	DeregisterFailures uint64 `json:"deregister_failures"`
	DeregisterBatches  uint64 `json:"deregister_batches"` // calls of the NIC by the reaper, each for up to 16 regions

	Refused     uint64 `json:"refused"`     // registrations that the policy did not take
	Evicted     uint64 `json:"evicted"`     // given up by the policy
	Reclaimed   uint64 `json:"reclaimed"`   // given up by the sweep, for room
	Invalidated uint64 `json:"invalidated"` // given up by Invalidate, Revoke and Close
	Revoked     uint64 `json:"revoked"`     // of them, leased when Revoke came

	Regions       int   `json:"regions"`        // registered or being so
	LeasedRegions int   `json:"leased_regions"` // of them, leased
	MaxRegions    int   `json:"max_regions"`    // the budget
	PeakRegions   int   `json:"peak_regions"`   // the most there were
	Bytes         int64 `json:"bytes"`          // registered or being so
	MaxBytes      int64 `json:"max_bytes"`      // the budget

	RegisterTime   time.Duration `json:"register_ns"`   // of a granule, lately
	DeregisterTime time.Duration `json:"deregister_ns"` // likewise
	HugePages      string        `json:"huge_pages"`    // "yes", or why the arenas have none
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
		DeregisterBatches:  n.batches.Load(),
		Refused:            n.refused.Load(),
		Evicted:            n.evicted.Load(),
		Reclaimed:          n.reclaimed.Load(),
		Invalidated:        n.invalidated.Load(),
		Revoked:            n.revoked.Load(),
		Regions:            int(regions),
		LeasedRegions:      leased,
		MaxRegions:         c.budget,
		PeakRegions:        int(n.peak.Load()),
		Bytes:              regions << c.shift,
		MaxBytes:           int64(c.budget) << c.shift,
		RegisterTime:       c.took.register.typical(),
		DeregisterTime:     c.took.deregister.typical(),
		HugePages:          c.huge.String(),
	}
}
