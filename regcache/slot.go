package regcache

import (
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// granuleSlot lists the registrations of one granule: one per tag and access,
// which is one in most cases. Readers walk the list without a lock; a region
// taken out keeps its link, so that a reader on it finds its way on.
type granuleSlot struct {
	head atomic.Pointer[region]

	// mu serialises registration and deregistration of the granule, and is held
	// across both. It is the first lock; live.mu is taken after it.
	mu sync.Mutex

	touched atomic.Uint64 // Cache.touches when it was used last; 0 never
	uses    atomic.Uint32 // since it was used after a while without, up to mostUses
}

// mostUses is as far as uses of a granule are counted: one that is always in use is
// not written to for it.
const mostUses = 4096

// count adds to the uses.
func (s *granuleSlot) count(uses uint32) {
	if n := s.uses.Load(); n < mostUses {
		s.uses.Store(min(n+uses, mostUses)) // of two owners' at a time one may be lost
	}
}

// find returns the region of tag and access, or nil.
func (s *granuleSlot) find(tag via.Ptag, access Access) *region {
	for r := s.head.Load(); r != nil; r = r.next.Load() {
		if r.tag == tag && r.access == access {
			return r
		}
	}
	return nil
}

func (s *granuleSlot) insertLocked(r *region) {
	r.next.Store(s.head.Load())
	s.head.Store(r)
}

func (s *granuleSlot) removeLocked(r *region) {
	at := &s.head
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
