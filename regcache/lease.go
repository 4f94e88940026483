package regcache

import "github.com/viablk/viablk/via"

// Lease is the right to use a buffer's registration until Release. The zero
// Lease is valid to Release and nothing else. A Lease may be passed on; of its
// copies only one is released.
type Lease struct {
	region *region
	addr   uint64
}

// Memory returns the registered region that the buffer lies in. The region is
// larger than the buffer.
func (l *Lease) Memory() *via.Memory { return l.region.memory }

// Addr returns the address of the buffer, as peers and descriptors name it.
func (l *Lease) Addr() uint64 { return l.addr }

// Handle returns the region's handle.
func (l *Lease) Handle() uint32 { return l.region.handle }

// Release gives the lease back. No descriptor that names its handle may still
// be posted. It neither blocks nor allocates, unless the cache deregisters
// inline. Releasing a released Lease does nothing; releasing two copies of one
// panics when the cache can tell.
func (l *Lease) Release() {
	r := l.region
	if r == nil {
		return
	}
	l.region = nil
	if !r.drop() {
		return
	}
	if c := r.arena.cache; c.inline {
		c.end(r)
	} else {
		c.reaper.push(r)
	}
}
