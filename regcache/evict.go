package regcache

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// A region ends in four ways: the policy evicts it, the sweep needs its budget,
// Invalidate or Revoke withdraws it, its arena is closed. Each clears the
// retained bit and then, if no lease is out, calls end; otherwise the last
// Release does.

// evicted is the callback of the eviction policy, on any goroutine and with the
// policy's locks held. It admits the region to probation, clears the retained
// bit of the region whose probation ends for it, and leaves the rest to the
// reaper or to the miss that offered. It acquires no lock, does not block and
// does not allocate.
func (c *Cache) evicted(r *region) {
	if r = c.probation.admit(r); r == nil {
		return
	}
	cleared, idle := r.unretain()
	if cleared {
		c.count.evicted.Add(1)
	}
	switch {
	case idle && c.inlineEvict:
		c.reaper.enqueue(r)
	case idle:
		c.reaper.push(r)
	}
}

// end deregisters a region that is idle and not retained. When it returns, the
// region is leased again, or gone, possibly ended by another goroutine.
func (c *Cache) end(r *region) {
	g := &r.arena.granules[r.index]
	g.mu.Lock()
	defer g.mu.Unlock()
	c.endLocked(g, r)
}

// endLocked is end with the granule's lock held. It reports whether the region
// is gone; if not, it is leased.
//
// +checklocks:g.mu
func (c *Cache) endLocked(g *granuleIndex, r *region) bool {
	if !r.markDead() {
		return r.state.Load()&stateDead != 0
	}
	g.removeLocked(r)
	// Before the budget is returned, or the limit would be exceeded while the
	// NIC still holds the memory. After an error the NIC has dropped the region
	// all the same; via never retries.
	begin := time.Now()
	if err := r.memory.Deregister(); err != nil {
		c.count.deregisterFailures.Add(1)
	}
	c.cost.deregister.add(time.Since(begin))
	c.count.deregistrations.Add(1)
	// In this order: a miss without budget searches for a region to wait for,
	// and must see either this region or its budget.
	c.unreserve()
	c.live.remove(r)
	return true
}

// endAll ends regions that are idle and not retained, for the reaper. It holds
// the locks of their granules over one call of the NIC that deregisters all of
// them. It acquires them with TryLock only: no goroutine waits for a granule's
// lock while it holds another.
//
// The locks of a list of granules are taken with TryLock and held together.
// +checklocksignore
func (c *Cache) endAll(list []*region) {
	dying := make([]*region, 0, reapBatch)
	memories := make([]*via.Memory, 0, reapBatch)
	single := make([]*region, 0, reapBatch)
	for _, r := range list {
		c.forget(r) // before any lock is taken
	}
	for _, r := range list {
		g := &r.arena.granules[r.index]
		switch {
		case !g.mu.TryLock():
			single = append(single, r)
		case !r.markDead():
			g.mu.Unlock()
		default:
			g.removeLocked(r)
			dying, memories = append(dying, r), append(memories, r.memory)
		}
	}
	if len(dying) > 0 {
		begin := time.Now()
		if err := c.nic.DeregisterAll(memories); err != nil {
			c.count.deregisterFailures.Add(1)
		}
		c.cost.deregister.add(time.Since(begin) / time.Duration(len(dying)))
		c.count.deregistrations.Add(uint64(len(dying)))
		c.count.batches.Add(1)
	}
	for _, r := range dying {
		c.unreserve()
		c.live.remove(r)
		r.arena.granules[r.index].mu.Unlock()
	}
	for _, r := range single {
		c.end(r)
	}
}

// endQueued does the reaper's work in a miss, without a batch and without an
// allocation.
func (c *Cache) endQueued() {
	for r := c.reaper.popAll(); r != nil; {
		next := r.unlink()
		c.forget(r)
		c.end(r)
		r = next
	}
}

// forget tells the policy that a region has ended, if that is pending. The
// policy may block, so the reaper calls forget. If the granule has been
// registered again, the policy knows the new region under the same key and is
// not told.
func (c *Cache) forget(r *region) {
	if !r.forgetPending.Swap(false) {
		return
	}
	if now := r.arena.granules[r.index].find(r.tag, r.access); now == nil || now == r {
		c.policy.forget(r)
	}
}

// evictOne ends an idle region, or waits until another goroutine has ended one.
// It returns false if all regions are leased.
func (c *Cache) evictOne() bool {
	r := c.live.victim()
	if r == nil {
		return false
	}
	c.retire(r, &c.count.reclaimed)
	c.end(r)
	return true
}

// evictQuarter ends a quarter of the idle regions, for a NIC that is out of
// resources. It returns false if no region is idle.
func (c *Cache) evictQuarter() bool {
	n := (c.live.idle() + 3) / 4
	for i := range n {
		if !c.evictOne() {
			return i > 0
		}
	}
	return n > 0
}

// Invalidate withdraws every registration of the granules that buf touches.
// When it returns nil no peer reaches the memory by an old handle. It returns
// ErrInUse if some are leased; these end with their last Release, and the
// caller calls Invalidate again. An empty buffer touches no granule.
func (c *Cache) Invalidate(buf []byte) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if len(buf) == 0 {
		return nil
	}
	addr := addressOf(buf)
	a := c.arenaAt(addr)
	if a == nil || uint64(len(buf)) > a.size-(addr-a.base) {
		return ErrNotArena
	}
	leased := 0
	off := addr - a.base
	for g := off >> c.shift; g <= (off+uint64(len(buf))-1)>>c.shift; g++ {
		leased += c.withdraw(&a.granules[g])
	}
	if leased > 0 {
		return fmt.Errorf("invalidate %d bytes: %d registrations are leased: %w", len(buf), leased, ErrInUse)
	}
	return nil
}

// InvalidateTag withdraws every registration of a protection tag, so that the
// tag can be destroyed. The caller guarantees that no Acquire with the tag is
// in progress or follows. It returns ErrInUse as Invalidate does.
func (c *Cache) InvalidateTag(tag via.Ptag) error {
	leased := 0
	for _, r := range c.live.selected(func(r *region) bool { return r.tag == tag }) {
		c.retire(r, &c.count.invalidated)
		g := &r.arena.granules[r.index]
		g.mu.Lock()
		if !c.endLocked(g, r) {
			leased++
		}
		g.mu.Unlock()
	}
	if leased > 0 {
		return fmt.Errorf("invalidate protection tag %d: %d registrations are leased: %w", tag.ID(), leased, ErrInUse)
	}
	return nil
}

// Revoke removes the access of peers to memory of a protection tag, leased or
// not: when it returns nil no peer reaches any of it. Idle registrations end.
// Leased ones change, in place, to a tag that no VI carries and to no remote
// access; they stay local memory until their last Release, and are not leased
// again. A later Acquire with the tag registers anew, so a caller that fences a
// path stops using the tag first. The error is the NIC's.
func (c *Cache) Revoke(tag via.Ptag) error {
	void, err := c.voidTag()
	if err != nil {
		return fmt.Errorf("revoke protection tag %d: %w", tag.ID(), err)
	}
	for _, r := range c.live.selected(func(r *region) bool { return r.tag == tag }) {
		c.retire(r, &c.count.invalidated)
		g := &r.arena.granules[r.index]
		g.mu.Lock()
		// With the lock held: a miss registers anew once this region is
		// removed.
		if first := r.revoke(); !c.endLocked(g, r) && first {
			c.count.revoked.Add(1)
			err = errors.Join(err, r.memory.SetAttributes(via.MemAttributes{Ptag: void}))
		}
		g.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("revoke protection tag %d: %w", tag.ID(), err)
	}
	return nil
}

// voidTag returns the tag of revoked regions.
func (c *Cache) voidTag() (via.Ptag, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.void == (via.Ptag{}) {
		tag, err := c.nic.CreatePtag()
		if err != nil {
			return tag, err
		}
		c.void = tag
	}
	return c.void, nil
}

// destroyVoidTag destroys the tag of revoked regions, after the last of them
// has ended.
func (c *Cache) destroyVoidTag() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.void == (via.Ptag{}) {
		return nil
	}
	tag := c.void
	c.void = via.Ptag{}
	return c.nic.DestroyPtag(tag)
}

// withdraw ends the regions of a granule and returns how many are still leased.
func (c *Cache) withdraw(g *granuleIndex) (leased int) {
	for r := g.head.Load(); r != nil; r = r.next.Load() {
		c.retire(r, &c.count.invalidated)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := g.head.Load(); r != nil; {
		next := r.next.Load()
		// A region registered since the loop above is retained.
		if cleared, _ := r.unretain(); cleared {
			c.count.invalidated.Add(1)
		}
		if !c.endLocked(g, r) {
			leased++
		}
		r = next
	}
	return leased
}

// retire clears the retained bit of a region and counts it. The reaper tells
// the policy, which may block. A region that is not retained was evicted or
// refused by the policy before.
func (c *Cache) retire(r *region, count *atomic.Uint64) {
	if cleared, _ := r.unretain(); cleared {
		count.Add(1)
		r.forgetPending.Store(true)
		c.reaper.push(r)
	}
}
