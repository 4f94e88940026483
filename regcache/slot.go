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
