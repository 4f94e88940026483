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
//  4. miss: under the granule's lock repeat the lookup, reserve budget,
//     register, publish; outside of it evict, and offer the region to the
//     eviction policy
//  5. Release (lease.go)                            one atomic addition

// touchEvery is how many hits of a region are reported to the eviction policy
// as one. A report costs tens of nanoseconds; one in eight suffices to rank
// regions.
const touchEvery = 8

// Acquire leases the registration of a buffer for a tag and an access, and
// registers the granule of the buffer if no registration exists. Peers with the
// tag can reach the whole granule, so memory of different trust belongs in
// different arenas.
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
	r := a.granules[granule].find(tag, access)
	if r == nil || !c.hit(r) {
		if r, err = c.miss(a, granule, tag, access); err != nil {
			return Lease{}, err
		}
	}
	return Lease{region: r, addr: addr}, nil
}

// AcquireCached leases an existing registration of a buffer. It never
// registers, blocks or allocates.
func (c *Cache) AcquireCached(buf []byte, tag via.Ptag, access Access) (Lease, bool) {
	addr := addressOf(buf)
	a, granule, err := c.locate(addr, uint64(len(buf)))
	if err != nil {
		return Lease{}, false
	}
	r := a.granules[granule].find(tag, access)
	if r == nil || !c.hit(r) {
		return Lease{}, false
	}
	return Lease{region: r, addr: addr}, true
}

// Reach returns how many bytes of buf one lease can cover, from its beginning:
// a buffer that crosses granules is leased piece by piece. Reach returns 0 if
// buf does not begin in an arena.
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

// hit acquires a lease of a region found without a lock.
func (c *Cache) hit(r *region) bool {
	if ok, last := r.acquire(); !ok {
		if last {
			c.reaper.push(r)
		}
		return false
	}
	if !r.used.Load() {
		r.used.Store(true)
	}
	if r.uses.Add(1)%touchEvery == 0 && c.reserved.Load() >= c.pressure {
		c.policy.touch(r)
	}
	return true
}

// miss registers a granule and returns the region with a lease.
func (c *Cache) miss(a *Arena, granule int, tag via.Ptag, access Access) (*region, error) {
	g := &a.granules[granule]
	retried := false
	for attempt := 0; ; attempt++ {
		g.mu.Lock()
		if a.closed.Load() {
			g.mu.Unlock()
			return nil, ErrClosed
		}
		if r := g.find(tag, access); r != nil && c.hit(r) {
			g.mu.Unlock()
			c.count.coalesced.Add(1)
			return r, nil
		}
		if !c.reserve() {
			g.mu.Unlock()
			// Other misses may reserve the budget freed here, so the number of
			// attempts is bounded.
			if attempt >= 2*c.budget+8 || !c.evictOne() && c.exhausted() {
				c.count.overBudget.Add(1)
				return nil, ErrBudget
			}
			continue
		}
		r, err := c.registerLocked(a, granule, tag, access)
		g.mu.Unlock()
		switch {
		case err == nil:
			c.count.misses.Add(1)
			c.offer(r)
			if c.inlineEvict {
				c.endQueued()
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
// it with one lease. The caller holds the granule's lock, so registrations and
// deregistrations of a granule never overlap.
//
// +checklocksignore
func (c *Cache) registerLocked(a *Arena, granule int, tag via.Ptag, access Access) (*region, error) {
	begin := time.Now()
	m, err := c.nic.RegisterMem(a.granuleBytes(granule), access.attributes(tag))
	if err != nil {
		c.count.registerFailures.Add(1)
		c.unreserve()
		return nil, err
	}
	c.cost.register.add(time.Since(begin))
	c.count.registrations.Add(1)
	r := &region{
		memory: m, handle: m.Handle(), tag: tag, access: access,
		arena: a, index: granule, bytes: len(m.Bytes()),
	}
	r.state.Store(stateRetained | 1)
	c.live.add(r)
	a.granules[granule].insertLocked(r)
	return r, nil
}

// offer asks the eviction policy to keep a region that the caller has leased.
func (c *Cache) offer(r *region) {
	if c.policy.offer(r) {
		return
	}
	c.count.refused.Add(1)
	if out := c.probation.admit(r); out == r {
		r.unretain() // the caller's lease ends it
	} else if out != nil {
		c.evicted(out) // its probation ends
	}
}

// outOfResources reports whether the NIC is out of resources; other errors are
// final.
func outOfResources(err error) bool {
	return errors.Is(err, via.ErrResource) || errors.Is(err, syscall.ENOMEM)
}
