package regcache

import "sync/atomic"

// probation is the probation segment of the cache: a ring of registrations that
// the policy evicted or refused, each retained until others displace it. A
// policy that ranks by frequency refuses most new regions, while their granules
// are often used again at once: a pass over memory in small steps would
// register a granule for every step. Its size is half of the budget that the
// policy may not keep.
type probation struct {
	entries []atomic.Pointer[region]
	next    atomic.Uint64
}

func (p *probation) init(budget, room int) {
	p.entries = make([]atomic.Pointer[region], (budget-room)/2)
}

// admit admits a region, once in its life, and returns the region displaced by
// it: the region itself if it is not admitted, or nil. It neither blocks nor
// allocates.
func (p *probation) admit(r *region) *region {
	if len(p.entries) == 0 || r.probated.Swap(true) {
		return r
	}
	return p.entries[p.next.Add(1)%uint64(len(p.entries))].Swap(r)
}
