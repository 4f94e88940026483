package regcache

import (
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// granuleIndex lists the registrations of one granule: one per tag and access,
// in most cases one. Readers walk the list without a lock; a removed region
// keeps its link, so that a reader on it continues.
type granuleIndex struct {
	head atomic.Pointer[region]

	// mu serialises registration and deregistration of the granule, and is held
	// across both. Lock order: mu before live.mu.
	mu sync.Mutex

	lastTouch atomic.Uint64 // Cache.touches at the last use; 0 if never used
	debt      atomic.Int64  // ns that copies cost since, see CopyPolicy.registers
}

// find returns the region of a tag and an access, or nil.
func (g *granuleIndex) find(tag via.Ptag, access Access) *region {
	for r := g.head.Load(); r != nil; r = r.next.Load() {
		if r.tag == tag && r.access == access {
			return r
		}
	}
	return nil
}

// insertLocked adds a region.
//
// +checklocks:g.mu
func (g *granuleIndex) insertLocked(r *region) {
	r.next.Store(g.head.Load())
	g.head.Store(r)
}

// removeLocked removes a region, which must be in the list.
//
// +checklocks:g.mu
func (g *granuleIndex) removeLocked(r *region) {
	at := &g.head
	for {
		have := at.Load()
		if have == r {
			at.Store(r.next.Load())
			return
		}
		if have == nil {
			panic("regcache: region is not in the index")
		}
		at = &have.next
	}
}
