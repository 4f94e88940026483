package regcache

import "sync/atomic"

// reaper ends regions on its own goroutine, so that neither the goroutine that
// released the last lease nor the policy's waits for the NIC. It ends all
// queued regions in batches: the NIC deregisters a batch in one call.
type reaper struct {
	head atomic.Pointer[region] // a stack, linked by region.nextQueued
	wake chan struct{}          // capacity 1
	quit chan struct{}
	done chan struct{}
}

// reapBatch is how many regions are ended at once. A miss of one of their
// granules waits for the whole batch.
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

// push queues a region that is idle and not retained, or that the policy must
// forget, and wakes the goroutine. It neither blocks nor allocates.
func (p *reaper) push(r *region) {
	if !p.enqueue(r) {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// enqueue queues a region without waking the goroutine, for a caller that ends
// the queue. It returns false if the region is queued already: the region
// leaves the queue before its state is read.
func (p *reaper) enqueue(r *region) bool {
	if r.queued.Swap(true) {
		return false
	}
	for {
		r.nextQueued = p.head.Load()
		if p.head.CompareAndSwap(r.nextQueued, r) {
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
		for r := p.popAll(); r != nil; {
			next := r.unlink()
			if batch = append(batch, r); next == nil || len(batch) == cap(batch) {
				end(batch)
				clear(batch)
				batch = batch[:0]
			}
			r = next
		}
	}
}

// popAll detaches the whole queue; the caller walks it with unlink.
func (p *reaper) popAll() *region { return p.head.Swap(nil) }

// unlink detaches a region from a popped queue and returns the next one.
func (r *region) unlink() (next *region) {
	next, r.nextQueued = r.nextQueued, nil
	r.queued.Store(false)
	return next
}

// stop ends the goroutine and waits for it. Other goroutines have ended the
// queued regions by then. Calls after the first do nothing.
func (p *reaper) stop() {
	select {
	case <-p.quit:
	default:
		close(p.quit)
	}
	<-p.done
}
