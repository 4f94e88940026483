package regcache

import "github.com/viablk/viablk/via"

// Lease is the right to use a buffer's registration until Release. The zero
// Lease permits Release only. A Lease may be copied; only one of its copies is
// released.
type Lease struct {
	region *region
	addr   uint64
}

// Memory returns the registered region that contains the buffer. The region is
// larger than the buffer.
func (l *Lease) Memory() *via.Memory { return l.region.memory }

// Addr returns the address of the buffer, as peers and descriptors name it.
func (l *Lease) Addr() uint64 { return l.addr }

// Handle returns the region's handle.
func (l *Lease) Handle() uint32 { return l.region.handle }

// Release returns the lease. No posted descriptor may name its handle any more.
// Release neither blocks nor allocates, unless the cache deregisters inline.
// Releasing a released Lease does nothing; releasing two copies of one panics
// if the cache detects it.
func (l *Lease) Release() {
	r := l.region
	if r == nil {
		return
	}
	l.region = nil
	if !r.release() {
		return
	}
	if c := r.arena.cache; c.inlineDeregister {
		c.end(r)
	} else {
		c.reaper.push(r)
	}
}
