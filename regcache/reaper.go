package regcache

import "sync/atomic"

// reaper ends regions on a goroutine of its own: what a NIC needs to deregister
// is kept from the goroutine that released the last lease and from the
// policy's. It works through everything that gathered while it was busy or
// asleep, in batches: what a batch deregisters is one call of the NIC.
type reaper struct {
	head atomic.Pointer[region] // a stack, linked by region.link
	wake chan struct{}          // holds one
	quit chan struct{}
	done chan struct{}
}

// reapBatch is how many regions are ended at once. A miss of one of their granules waits
// for all of them.
const reapBatch = 16

// startReaper starts the goroutine; stop ends it.
func startReaper(end func([]*region)) *reaper {
	p := &reaper{
		wake: make(chan struct{}, 1),
		quit: make(chan struct{}),
		done: make(chan struct{}),
	}
	go p.reap(end)
	return p
}

// push hands over a region that is idle and not retained, or that the policy is to
// forget, and wakes the goroutine. It neither blocks nor allocates.
func (p *reaper) push(r *region) {
	if !p.put(r) {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// put lists a region without waking anybody: the caller goes on to work. A region that
// is on the list already is not added, and put returns false: it is taken off before its
// state is looked at.
func (p *reaper) put(r *region) bool {
	if r.queued.Swap(true) {
		return false
	}
	for {
		r.link = p.head.Load()
		if p.head.CompareAndSwap(r.link, r) {
			return true
		}
	}
}

func (p *reaper) reap(end func([]*region)) {
	defer close(p.done)
	batch := make([]*region, 0, reapBatch)
	for {
		select {
		case <-p.wake:
		case <-p.quit:
			return
		}
		for r := p.take(); r != nil; {
			next := r.unlist()
			if batch = append(batch, r); next == nil || len(batch) == cap(batch) {
				end(batch)
				clear(batch)
				batch = batch[:0]
			}
			r = next
		}
	}
}

// take takes the list, of which unlist takes one after the other.
func (p *reaper) take() *region { return p.head.Swap(nil) }

// unlist takes a region off a list that was taken, and returns the next.
func (r *region) unlist() (next *region) {
	next, r.link = r.link, nil
	r.queued.Store(false)
	return next
}

// stop ends the goroutine and waits for it. Regions on the list have been ended
// by others by then. Calls after the first do nothing.
func (p *reaper) stop() {
	select {
	case <-p.quit:
	default:
		close(p.quit)
	}
	<-p.done
}
