package regcache

import "sync"

// evictionPolicy selects the idle registrations that are worth keeping. It owns
// none: it evicts a region by calling the function it was made with, possibly
// on any goroutine, with any of the policy's locks held, more than once for a
// region, and for a region that is gone; never with nil.
//
// Its methods are safe for concurrent use. The cache holds none of its locks
// when it calls them, except for touch. touch and offer do not block; forget
// and close may wait for the policy's own goroutines, and are called by the
// reaper and by Cache.Close.
type evictionPolicy interface {
	// touch reports a hit of the region. It does not allocate per call.
	touch(r *region)

	// offer asks to keep a new region. It returns false if the region is not
	// kept; the policy then never evicts it.
	offer(r *region) bool

	// forget reports that a region has ended, or is about to.
	forget(r *region)

	// close evicts every region and waits for the policy's goroutines. Methods
	// called during or after close do nothing; offer returns false. Calls after
	// the first do nothing.
	close()
}

// retainable returns how many of a budget of regions a policy may keep. The
// rest is room for regions that are registered and not kept; with a fifth, the
// sweep ends few regions on the policy's behalf (3-5 % of them under Zipf's
// law, 48 % with a sixteenth).
func retainable(budget int) int { return max(1, budget*4/5) }

// clockPolicy keeps regions used since its hand last passed, and admits one new
// region in eight once it is full: a cycle of buffers larger than the budget
// would otherwise evict each registration just before its use.
type clockPolicy struct {
	evict func(*region)
	// +checklocks:mu
	room int // regions

	mu sync.Mutex // a leaf lock: evict is called without it
	// +checklocks:mu
	kept []*region
	// +checklocks:mu
	hand int
	// offered counts regions offered since the clock is full.
	// +checklocks:mu
	offered uint
	// +checklocks:mu
	closed bool
}

// admitEvery is how many new regions are offered to a full clock for each one
// that it admits.
const admitEvery = 8

func newClockPolicy(room int, evict func(*region)) *clockPolicy {
	return &clockPolicy{evict: evict, room: room}
}

// touch does nothing: the hit has set region.used.
func (p *clockPolicy) touch(*region) {}

func (p *clockPolicy) offer(r *region) bool {
	victim, ok := p.admit(r)
	if victim != nil {
		p.evict(victim)
	}
	return ok
}

func (p *clockPolicy) admit(r *region) (victim *region, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	if len(p.kept) < p.room {
		r.clockIndex = len(p.kept)
		p.kept = append(p.kept, r)
		return nil, true
	}
	if p.offered++; p.offered%admitEvery != 0 {
		return nil, false
	}
	// At most one round: the second pass finds the bits clear.
	for p.kept[p.hand].used.Swap(false) {
		p.hand = (p.hand + 1) % len(p.kept)
	}
	victim = p.kept[p.hand]
	r.clockIndex = p.hand
	p.kept[p.hand] = r
	p.hand = (p.hand + 1) % len(p.kept)
	return victim, true
}

func (p *clockPolicy) forget(r *region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.clockIndex >= len(p.kept) || p.kept[r.clockIndex] != r {
		return
	}
	last := len(p.kept) - 1
	p.kept[r.clockIndex] = p.kept[last]
	p.kept[r.clockIndex].clockIndex = r.clockIndex
	p.kept[last] = nil
	p.kept = p.kept[:last]
	if p.hand >= last {
		p.hand = 0
	}
}

func (p *clockPolicy) close() {
	p.mu.Lock()
	kept := p.kept
	p.kept, p.closed = nil, true
	p.mu.Unlock()
	for _, r := range kept {
		p.evict(r)
	}
}
