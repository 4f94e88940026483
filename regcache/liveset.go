package regcache

import "sync"

// liveSet holds every registered region. It serves the sweep, which must not
// search empty granules, and the statistics; no hit goes near it.
type liveSet struct {
	mu      sync.Mutex // taken after a granule's lock; nothing is called with it held
	regions []*region
	hand    int
	gone    uint64 // hits of regions that are no more
}

func (l *liveSet) add(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.member = len(l.regions)
	l.regions = append(l.regions, r)
}

func (l *liveSet) remove(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.regions) - 1
	l.regions[r.member] = l.regions[last]
	l.regions[r.member].member = r.member
	l.regions[last] = nil
	l.regions = l.regions[:last]
	l.gone += r.uses.Load()
}

// victim returns a region that is not leased, preferably one that is given up
// already and waits for the reaper, or one that was not used since the hand last
// passed it, or nil if all are leased. Regions that are being deregistered qualify:
// to end them is to wait for whoever has begun.
func (l *liveSet) victim() *region {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.regions {
		if s := r.state.Load(); s == 0 || s&stateDead != 0 {
			return r
		}
	}
	var used *region
	for range 2 * len(l.regions) {
		if l.hand >= len(l.regions) {
			l.hand = 0
		}
		r := l.regions[l.hand]
		l.hand++
		if !r.unused() {
			continue
		}
		if r.used.Swap(false) {
			used = r
			continue
		}
		return r
	}
	return used
}

// idle returns how many regions are not leased.
func (l *liveSet) idle() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.regions {
		if r.unused() {
			n++
		}
	}
	return n
}

// selected returns the regions that match.
func (l *liveSet) selected(match func(*region) bool) []*region {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*region
	for _, r := range l.regions {
		if match(r) {
			found = append(found, r)
		}
	}
	return found
}

// hits returns the hits of all regions, live and gone, and how many are leased.
func (l *liveSet) hits() (hits uint64, leased int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hits = l.gone
	for _, r := range l.regions {
		hits += r.uses.Load()
		if !r.unused() {
			leased++
		}
	}
	return hits, leased
}
