package regcache

import "sync/atomic"

// trial is a ring of registrations that the policy has given up, or never took, each
// retained until others have pushed it out. A policy that ranks by frequency refuses
// most newcomers, and a newcomer's granule is often used again at once: a pass over
// memory in small steps would register it for every step. The room is half of what
// the policy may not keep.
type trial struct {
	places []atomic.Pointer[region]
	next   atomic.Uint64
}

func (t *trial) init(budget, room int) {
	t.places = make([]atomic.Pointer[region], (budget-room)/2)
}

// admit takes a region in, once in its life, and returns the one that is to be given
// up for it: the region itself if it is not taken, or nil. It neither blocks nor
// allocates.
func (t *trial) admit(r *region) *region {
	if len(t.places) == 0 || r.tried.Swap(true) {
		return r
	}
	return t.places[t.next.Add(1)%uint64(len(t.places))].Swap(r)
}
