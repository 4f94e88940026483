package regcache

import "sync"

// adviser says which idle registrations are worth keeping. It owns none: it
// gives one up by calling the function it was made with, which may be called on
// any goroutine, with any of the adviser's locks held, more than once for a
// region, and also for one that is gone; never with nil.
//
// Its methods are safe for concurrent use, and none is called with a lock of the cache
// held except touch. touch and offer return at once; forget and close may wait for the
// adviser's own goroutines, and are called by the reaper and by Cache.Close.
type adviser interface {
	// touch says that a region is being used. It does not allocate per call.
	touch(r *region)

	// offer asks to keep a new region. False means that it is not kept, and
	// that the adviser will not mention it again.
	offer(r *region) bool

	// forget says that a region has ended, or is about to.
	forget(r *region)

	// close gives up everything and waits for the adviser's goroutines. Methods
	// called then or later do nothing; offer returns false. Calls after the
	// first do nothing.
	close()
}

// retainable returns how many of a budget of regions a policy may keep. The
// rest is room for what is registered and not kept; with a fifth, the sweep
// ends few regions on the policy's behalf (3-5 % of them under Zipf's law, 48 %
// with a sixteenth).
func retainable(budget int) int { return max(1, budget*4/5) }

// clockAdviser keeps what was used since its hand last passed, and admits one
// newcomer in eight once it is full: a cycle of buffers larger than the budget
// would otherwise push out each registration just before its use.
type clockAdviser struct {
	evict func(*region)
	room  int // regions

	mu      sync.Mutex // nothing is called with it held
	kept    []*region  // +checklocks:mu
	hand    int        // +checklocks:mu
	offered uint       // since it is full; +checklocks:mu
	closed  bool       // +checklocks:mu
}

// admitEvery is how many newcomers a full clock sees for each it admits.
const admitEvery = 8

func newClockAdviser(room int, evict func(*region)) *clockAdviser {
	return &clockAdviser{evict: evict, room: room}
}

// touch has nothing to do: the hit has set region.used.
func (c *clockAdviser) touch(*region) {}

func (c *clockAdviser) offer(r *region) bool {
	victim, ok := c.admit(r)
	if victim != nil {
		c.evict(victim)
	}
	return ok
}

func (c *clockAdviser) admit(r *region) (victim *region, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	if len(c.kept) < c.room {
		r.seat = len(c.kept)
		c.kept = append(c.kept, r)
		return nil, true
	}
	if c.offered++; c.offered%admitEvery != 0 {
		return nil, false
	}
	// At most one round: every bit passed is clear on the second.
	for c.kept[c.hand].used.Swap(false) {
		c.hand = (c.hand + 1) % len(c.kept)
	}
	victim = c.kept[c.hand]
	r.seat = c.hand
	c.kept[c.hand] = r
	c.hand = (c.hand + 1) % len(c.kept)
	return victim, true
}

func (c *clockAdviser) forget(r *region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.seat >= len(c.kept) || c.kept[r.seat] != r {
		return
	}
	last := len(c.kept) - 1
	c.kept[r.seat] = c.kept[last]
	c.kept[r.seat].seat = r.seat
	c.kept[last] = nil
	c.kept = c.kept[:last]
	if c.hand >= last {
		c.hand = 0
	}
}

func (c *clockAdviser) close() {
	c.mu.Lock()
	kept := c.kept
	c.kept, c.closed = nil, true
	c.mu.Unlock()
	for _, r := range kept {
		c.evict(r)
	}
}
