package regcache

import (
	"sync/atomic"
	"time"
)

// counters are updated on misses and ends, never on a hit.
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

// peaked records a number of regions in the maximum.
func (c *counters) peaked(n int64) {
	for {
		peak := c.peak.Load()
		if n <= peak || c.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// Stats describes a cache. The counters only grow; each is exact, but they are
// not a snapshot of one instant.
type Stats struct {
	Hits       uint64 `json:"hits"`        // leases of an existing registration
	Coalesced  uint64 `json:"coalesced"`   // of them, found under the granule's lock
	Misses     uint64 `json:"misses"`      // leases that registered
	OverBudget uint64 `json:"over_budget"` // ErrBudget: all registrations are leased

	Registrations      uint64 `json:"registrations"`
	RegisterFailures   uint64 `json:"register_failures"` // errors of the NIC
	Deregistrations    uint64 `json:"deregistrations"`   // including those with an error
	DeregisterFailures uint64 `json:"deregister_failures"`
	DeregisterBatches  uint64 `json:"deregister_batches"` // calls of the NIC, each for up to 16 regions

	Refused     uint64 `json:"refused"`     // by the policy, of new registrations
	Evicted     uint64 `json:"evicted"`     // by the policy
	Reclaimed   uint64 `json:"reclaimed"`   // by the sweep
	Invalidated uint64 `json:"invalidated"` // by Invalidate, Revoke and Close
	Revoked     uint64 `json:"revoked"`     // of them, leased during Revoke

	Regions       int   `json:"regions"`        // registered or registering
	LeasedRegions int   `json:"leased_regions"` // of them, leased
	MaxRegions    int   `json:"max_regions"`    // the budget
	PeakRegions   int   `json:"peak_regions"`   // maximum of Regions
	Bytes         int64 `json:"bytes"`          // registered or registering
	MaxBytes      int64 `json:"max_bytes"`      // the budget

	RegisterTime   time.Duration `json:"register_ns"`   // of a granule, average
	DeregisterTime time.Duration `json:"deregister_ns"` // of a granule, average
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
		RegisterTime:       c.cost.register.mean(),
		DeregisterTime:     c.cost.deregister.mean(),
		HugePages:          c.huge.String(),
	}
}
