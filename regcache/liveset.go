package regcache

import "sync"

// liveSet holds every registered region, for the sweep, which must not search
// empty granules, and for the statistics. Hits do not use it.
type liveSet struct {
	mu sync.Mutex // a leaf lock, acquired after a granule's lock
	// +checklocks:mu
	regions []*region
	// +checklocks:mu
	hand int
	// removedHits sums the hits of removed regions.
	// +checklocks:mu
	removedHits uint64
}

func (l *liveSet) add(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.liveIndex = len(l.regions)
	l.regions = append(l.regions, r)
}

func (l *liveSet) remove(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.regions) - 1
	l.regions[r.liveIndex] = l.regions[last]
	l.regions[r.liveIndex].liveIndex = r.liveIndex
	l.regions[last] = nil
	l.regions = l.regions[:last]
	l.removedHits += r.uses.Load()
}

// victim returns a region that is not leased, or nil if all are leased. It
// prefers a region that is queued for the reaper, then one not used since the
// hand last passed it. Regions being deregistered qualify: ending them waits
// for the goroutine that deregisters.
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
		if !r.unleased() {
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
		if r.unleased() {
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

// hits returns the hits of all regions, including removed ones, and how many
// regions are leased.
func (l *liveSet) hits() (hits uint64, leased int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hits = l.removedHits
	for _, r := range l.regions {
		hits += r.uses.Load()
		if !r.unleased() {
			leased++
		}
	}
	return hits, leased
}
