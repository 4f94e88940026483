package regcache

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// Four ways lead to the end of a region: the policy evicts it, the sweep needs
// its budget, somebody invalidates it, its arena is closed. All four clear the
// retained bit and then, if no lease is out, call end; else the last Release
// does.

// evicted is called by the policy, on any goroutine and with the policy's locks
// held: it clears a bit, of this region or of the one whose trial ends for it, and
// leaves the rest to the reaper, or to the miss that offered. It takes no lock, waits for nothing and does not
// allocate.
func (c *Cache) evicted(r *region) {
	if r = c.trial.admit(r); r == nil {
		return
	}
	cleared, idle := r.unretain()
	if cleared {
		c.count.evicted.Add(1)
	}
	switch {
	case idle && c.prompt:
		c.reaper.put(r)
	case idle:
		c.reaper.push(r)
	}
}

// end deregisters a region that is idle and not retained. When it returns, the
// region is leased again or gone, whoever ended it.
func (c *Cache) end(r *region) {
	s := &r.arena.slots[r.index]
	s.mu.Lock()
	defer s.mu.Unlock()
	c.endLocked(s, r)
}

// endLocked is end with the granule's lock held. It reports whether the region
// is gone; if not, it is leased.
func (c *Cache) endLocked(s *granuleSlot, r *region) bool {
	if !r.die() {
		return r.state.Load()&stateDead != 0
	}
	s.removeLocked(r)
	// Before the budget is given back, or the limit would be exceeded while the
	// NIC still holds the memory. An error means that the NIC has forgotten the
	// region already; via never tries again.
	begin := time.Now()
	if err := r.memory.Deregister(); err != nil {
		c.count.deregisterFailures.Add(1)
	}
	c.took.deregister.add(time.Since(begin))
	c.count.deregistrations.Add(1)
	// In this order: a miss that finds no budget looks for a region to wait
	// for, and must see this one or its budget.
	c.unreserve()
	c.live.remove(r)
	return true
}

// endAll ends the regions that are idle and not retained, for the reaper. The locks of
// their granules are held over one call of the NIC that deregisters all of them. They
// are only tried: no goroutine waits for a lock while it has another.
func (c *Cache) endAll(list []*region) {
	dying := make([]*region, 0, reapBatch)
	memories := make([]*via.Memory, 0, reapBatch)
	single := make([]*region, 0, reapBatch)
	for _, r := range list {
		c.forget(r) // before any lock is taken
	}
	for _, r := range list {
		s := &r.arena.slots[r.index]
		switch {
		case !s.mu.TryLock():
			single = append(single, r)
		case !r.die():
			s.mu.Unlock()
		default:
			s.removeLocked(r)
			dying, memories = append(dying, r), append(memories, r.memory)
		}
	}
	if len(dying) > 0 {
		begin := time.Now()
		if err := c.nic.DeregisterAll(memories); err != nil {
			c.count.deregisterFailures.Add(1)
		}
		c.took.deregister.add(time.Since(begin) / time.Duration(len(dying)))
		c.count.deregistrations.Add(uint64(len(dying)))
		c.count.batches.Add(1)
	}
	for _, r := range dying {
		c.unreserve()
		c.live.remove(r)
		r.arena.slots[r.index].mu.Unlock()
	}
	for _, r := range single {
		c.end(r)
	}
}

// endListed does the reaper's work, for a miss: without a batch, and without an
// allocation.
func (c *Cache) endListed() {
	for r := c.reaper.take(); r != nil; {
		next := r.unlist()
		c.forget(r)
		c.end(r)
		r = next
	}
}

// forget tells the policy that a region has ended, if that is to be told. It may take
// a while: the reaper does it. Of a granule that is registered again meanwhile the
// policy knows the new region under the same key.
func (c *Cache) forget(r *region) {
	if !r.forget.Swap(false) {
		return
	}
	if now := r.arena.slots[r.index].find(r.tag, r.access); now == nil || now == r {
		c.adviser.forget(r)
	}
}

// evictOne ends an idle region, or waits until another goroutine has. It
// returns false if all regions are leased.
func (c *Cache) evictOne() bool {
	r := c.live.victim()
	if r == nil {
		return false
	}
	c.retire(r, &c.count.reclaimed)
	c.end(r)
	return true
}

// evictQuarter ends a quarter of the idle regions, for a NIC that ran out of
// something. It returns false if there is none.
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
// When it returns nil no peer reaches the memory by a handle given out before.
// It returns ErrInUse if some are leased, which end when the last lease is
// released; call it again then. A buffer without bytes touches nothing.
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
		leased += c.withdraw(&a.slots[g])
	}
	if leased > 0 {
		return fmt.Errorf("invalidate %d bytes: %d registrations are leased: %w", len(buf), leased, ErrInUse)
	}
	return nil
}

// InvalidateTag withdraws every registration of a protection tag, so that the
// tag can be destroyed. No Acquire with the tag is under way or follows. It
// returns ErrInUse as Invalidate does.
func (c *Cache) InvalidateTag(tag via.Ptag) error {
	leased := 0
	for _, r := range c.live.selected(func(r *region) bool { return r.tag == tag }) {
		c.retire(r, &c.count.invalidated)
		s := &r.arena.slots[r.index]
		s.mu.Lock()
		if !c.endLocked(s, r) {
			leased++
		}
		s.mu.Unlock()
	}
	if leased > 0 {
		return fmt.Errorf("invalidate protection tag %d: %d registrations are leased: %w", tag.ID(), leased, ErrInUse)
	}
	return nil
}

// Revoke takes the access of peers to memory of a protection tag away, leased or
// not: when it returns nil no peer that had it reaches any of it. Idle
// registrations end; leased ones change, in place, to a tag that no VI carries
// and to no remote access, stay local memory until their last Release, and are
// not leased again. An Acquire with the tag registers anew: who revokes because a
// path is fenced makes no more with the tag. The error is the NIC's.
func (c *Cache) Revoke(tag via.Ptag) error {
	void, err := c.voidTag()
	if err != nil {
		return fmt.Errorf("revoke protection tag %d: %w", tag.ID(), err)
	}
	for _, r := range c.live.selected(func(r *region) bool { return r.tag == tag }) {
		c.retire(r, &c.count.invalidated)
		s := &r.arena.slots[r.index]
		s.mu.Lock()
		// With the lock held: a miss registers anew when this one is out of the way.
		if first := r.revoke(); !c.endLocked(s, r) && first {
			c.count.revoked.Add(1)
			err = errors.Join(err, r.memory.SetAttributes(via.MemAttributes{Ptag: void}))
		}
		s.mu.Unlock()
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

// dropVoid destroys the tag of revoked regions, of which none is left.
func (c *Cache) dropVoid() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.void == (via.Ptag{}) {
		return nil
	}
	tag := c.void
	c.void = via.Ptag{}
	return c.nic.DestroyPtag(tag)
}

// withdraw ends the regions of a granule and returns how many are leased still.
func (c *Cache) withdraw(s *granuleSlot) (leased int) {
	for r := s.head.Load(); r != nil; r = r.next.Load() {
		c.retire(r, &c.count.invalidated)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := s.head.Load(); r != nil; {
		next := r.next.Load()
		// A region registered since the loop above is retained, and new.
		if cleared, _ := r.unretain(); cleared {
			c.count.invalidated.Add(1)
		}
		if !c.endLocked(s, r) {
			leased++
		}
		r = next
	}
	return leased
}

// retire ends the retention of a region and counts it. The policy is told by the
// reaper: it may wait for its own goroutine, and a miss does not. What is not retained
// the policy has given up or refused already.
func (c *Cache) retire(r *region, count *atomic.Uint64) {
	if cleared, _ := r.unretain(); cleared {
		count.Add(1)
		r.forget.Store(true)
		c.reaper.push(r)
	}
}
