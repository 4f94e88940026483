package regcache

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/via"
)

// The path of a request, in order:
//
//  1. locate: arena by bounds, granule by shift     no lock, no write
//  2. find: the registration of tag and access      no lock, no write
//  3. hit: take a lease                             two atomic additions
//  4. miss: under the granule's lock look again, reserve budget, register,
//     publish; outside of it make room, and ask the policy whether it stays
//  5. Release (lease.go)                            one atomic addition

// touchEvery is how many hits of a region the policy is told about as one. Each
// call costs tens of nanoseconds, one in eight is enough to rank regions.
const touchEvery = 8

// Acquire leases the registration of a buffer for a tag and an access, and
// makes one if there is none. The registration covers the buffer's granule:
// peers with the tag can reach its neighbours in the granule as well, so memory
// of different trust belongs in different arenas.
//
// A hit neither blocks, locks nor allocates. A miss registers on the caller's
// goroutine; concurrent misses of one granule register once. Errors are
// ErrNotArena, ErrSpans, ErrBudget, ErrClosed and those of the NIC; after any
// of them the caller copies instead.
func (c *Cache) Acquire(buf []byte, tag via.Ptag, access Access) (Lease, error) {
	addr := addressOf(buf)
	a, granule, err := c.locate(addr, uint64(len(buf)))
	if err != nil {
		return Lease{}, err
	}
	r := a.slots[granule].find(tag, access)
	if r == nil || !c.hit(r) {
		if r, err = c.miss(a, granule, tag, access); err != nil {
			return Lease{}, err
		}
	}
	return Lease{region: r, addr: addr}, nil
}

// AcquireCached leases the registration of a buffer if there is one. It never
// registers, blocks or allocates.
func (c *Cache) AcquireCached(buf []byte, tag via.Ptag, access Access) (Lease, bool) {
	addr := addressOf(buf)
	a, granule, err := c.locate(addr, uint64(len(buf)))
	if err != nil {
		return Lease{}, false
	}
	r := a.slots[granule].find(tag, access)
	if r == nil || !c.hit(r) {
		return Lease{}, false
	}
	return Lease{region: r, addr: addr}, true
}

// Reach returns how many bytes of buf one lease can cover, from its beginning:
// a buffer that crosses granules is leased piece by piece. 0 means that buf
// does not begin in an arena.
func (c *Cache) Reach(buf []byte) int {
	addr := addressOf(buf)
	a := c.arenaAt(addr)
	if a == nil || len(buf) == 0 {
		return 0
	}
	within := c.granule - int((addr-a.base)&uint64(c.granule-1))
	return min(len(buf), within)
}

// locate returns the arena and granule of a buffer.
func (c *Cache) locate(addr, size uint64) (*Arena, int, error) {
	a := c.arenaAt(addr)
	if a == nil {
		if c.closed.Load() {
			return nil, 0, ErrClosed
		}
		return nil, 0, ErrNotArena
	}
	off := addr - a.base
	if size == 0 || size > a.size-off {
		return nil, 0, ErrNotArena
	}
	granule := off >> c.shift
	if (off+size-1)>>c.shift != granule {
		return nil, 0, ErrSpans
	}
	return a, int(granule), nil
}

// arenaAt returns the arena that contains an address, or nil.
func (c *Cache) arenaAt(addr uint64) *Arena {
	table := *c.arenas.Load()
	low, high := 0, len(table)
	for low < high {
		middle := int(uint(low+high) / 2)
		if addr-table[middle].base < table[middle].size {
			return table[middle].arena
		}
		if addr < table[middle].base {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return nil
}

// hit takes a lease of a region found without a lock.
func (c *Cache) hit(r *region) bool {
	if ok, last := r.hold(); !ok {
		if last {
			c.reaper.push(r)
		}
		return false
	}
	if !r.used.Load() {
		r.used.Store(true)
	}
	if r.uses.Add(1)%touchEvery == 0 && c.reserved.Load() >= c.pressure {
		c.adviser.touch(r)
	}
	return true
}

// miss registers a granule and returns the region with a lease taken.
func (c *Cache) miss(a *Arena, granule int, tag via.Ptag, access Access) (*region, error) {
	s := &a.slots[granule]
	retried := false
	for attempt := 0; ; attempt++ {
		s.mu.Lock()
		if a.closed.Load() {
			s.mu.Unlock()
			return nil, ErrClosed
		}
		if r := s.find(tag, access); r != nil && c.hit(r) {
			s.mu.Unlock()
			c.count.coalesced.Add(1)
			return r, nil
		}
		if !c.reserve() {
			s.mu.Unlock()
			// Others may take what is freed here; that is no reason to go on
			// for ever.
			if attempt >= 2*c.budget+8 || !c.evictOne() && c.exhausted() {
				c.count.overBudget.Add(1)
				return nil, ErrBudget
			}
			continue
		}
		r, err := c.registerLocked(a, granule, tag, access)
		s.mu.Unlock()
		switch {
		case err == nil:
			c.count.misses.Add(1)
			c.offer(r)
			if c.prompt {
				c.endListed()
			}
			return r, nil
		case !outOfResources(err):
			return nil, err
		case retried || !c.evictQuarter():
			return nil, fmt.Errorf("%w: %w", ErrBudget, err)
		}
		retried = true
	}
}

// registerLocked registers a granule for which budget is reserved and publishes
// it with one lease. The granule's lock is held, so that its registrations and
// deregistrations never overlap.
func (c *Cache) registerLocked(a *Arena, granule int, tag via.Ptag, access Access) (*region, error) {
	begin := time.Now()
	m, err := c.nic.RegisterMem(a.granuleBytes(granule), access.attributes(tag))
	if err != nil {
		c.count.registerFailures.Add(1)
		c.unreserve()
		return nil, err
	}
	c.took.register.add(time.Since(begin))
	c.count.registrations.Add(1)
	r := &region{
		memory: m, handle: m.Handle(), tag: tag, access: access,
		arena: a, index: granule, bytes: len(m.Bytes()),
	}
	r.state.Store(stateRetained | 1)
	c.live.add(r)
	a.slots[granule].insertLocked(r)
	return r, nil
}

// offer asks the policy to keep a region that is leased by the caller.
func (c *Cache) offer(r *region) {
	if c.adviser.offer(r) {
		return
	}
	c.count.refused.Add(1)
	if out := c.trial.admit(r); out == r {
		r.unretain() // the caller's lease ends it
	} else if out != nil {
		c.evicted(out) // it was on trial
	}
}

// outOfResources tells a NIC that cannot register more from one that objects.
func outOfResources(err error) bool {
	return errors.Is(err, via.ErrResource) || errors.Is(err, syscall.ENOMEM)
}
