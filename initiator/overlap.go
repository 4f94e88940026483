package initiator

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
)

// overlaps orders the requests of a queue with those of all queues of its
// device that touch the same blocks. A request holds its range from Submit to
// its answer: a Read shares it with other Reads, everything else has it alone.
//
// A request without an answer may have been executed, and is executed again
// after a reconnect. As it still holds its range, nothing read or wrote these
// blocks in between, so that both executions count as one.
//
// The owner of the queue calls the methods; grant runs on the goroutine that
// released the range.
type overlaps struct {
	ranges  *block.Ranges // of the device; nil if nothing is executed again
	waits   []overlapWait // by op
	blocked int           // requests that wait for their range
	pause   time.Duration // of the next poll while blocked
	ended   bool          // nothing begins any more

	granted atomic.Int32 // requests in ready
	mu      sync.Mutex
	// +checklocks:mu
	ready []uint16 // ops that hold their range since the last pop
	// +checklocks:mu
	closed bool // what is granted is released at once
	// +checklocks:mu
	bell sched.Bell // of an owner that does not poll; else nil
}

// overlapWait is the hold of an op, or its place in the queue for it. It
// outlives its queue if that is closed while it waits.
type overlapWait struct {
	place       block.Wait
	off, length int64
	write       bool
	holds       bool // the owner knows of the hold
	waiting     bool
}

// Bounds of the interval at which a queue with a connection polls whether a
// range was granted that a request of another queue held: the release wakes no
// such queue.
const (
	firstOverlapPoll = 50 * time.Microsecond
	lastOverlapPoll  = 5 * time.Millisecond
)

// newOverlaps returns the overlaps of a queue.
func newOverlaps(ranges *block.Ranges, depth int) *overlaps {
	o := &overlaps{ranges: ranges, waits: make([]overlapWait, depth), ready: make([]uint16, 0, depth), pause: firstOverlapPoll}
	for i := range o.waits {
		o.waits[i].place.Granted = func() { o.grant(uint16(i)) }
	}
	return o
}

// acquire holds the next piece of an op and returns true, or returns false: the
// op waits until pop returns it.
func (o *overlaps) acquire(i uint16, p *op) bool {
	if o.ended {
		return false
	}
	if o.ranges == nil || p.end <= p.base {
		return true
	}
	r, w := p.request, &o.waits[i]
	switch r.Op {
	case block.Read, block.Write, block.Trim, block.WriteZeroes:
	default:
		return true // touches no content
	}
	w.off, w.length, w.write = r.Offset+p.base, p.end-p.base, r.Op != block.Read
	w.holds = o.ranges.Acquire(&w.place, w.off, w.length, w.write)
	if w.waiting = !w.holds; w.waiting {
		o.blocked++
	}
	return w.holds
}

// grant notes that a waiting op holds its range.
func (o *overlaps) grant(i uint16) {
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.ready = append(o.ready, i)
		o.granted.Add(1)
		if o.bell != nil {
			o.bell.Ring()
		}
	}
	o.mu.Unlock()
	if closed {
		w := &o.waits[i]
		o.ranges.Release(w.off, w.length, w.write)
	}
}

// setBell sets the bell that grant rings from now on; nil is none.
func (o *overlaps) setBell(bell sched.Bell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bell = bell
}

// pop returns an op that waited and holds its range now, or false.
func (o *overlaps) pop() (uint16, bool) {
	if o.granted.Load() == 0 {
		return 0, false
	}
	o.mu.Lock()
	i := o.ready[0]
	o.ready = o.ready[:copy(o.ready, o.ready[1:])]
	o.mu.Unlock()
	o.granted.Add(-1)
	o.waits[i].holds, o.waits[i].waiting = true, false
	o.blocked--
	o.pause = firstOverlapPoll
	return i, true
}

// waiting reports whether an op waits for its range.
func (o *overlaps) waiting(i uint16) bool { return o.waits[i].waiting }

// release ends the hold of an op.
func (o *overlaps) release(i uint16) {
	if w := &o.waits[i]; w.holds {
		w.holds = false
		o.ranges.Release(w.off, w.length, w.write)
	}
}

// poll shortens a sleep while a request waits for its range.
func (o *overlaps) poll(d time.Duration) time.Duration {
	if o.blocked == 0 || d >= 0 && d <= o.pause {
		return d
	}
	d, o.pause = o.pause, min(2*o.pause, lastOverlapPoll)
	return d
}

// end ends the waits of all ops, now and later.
func (o *overlaps) end() {
	o.ended = true
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	for { // granted before that
		i, ok := o.pop()
		if !ok {
			return
		}
		o.release(i)
	}
}

// releaseAll ends all holds.
func (o *overlaps) releaseAll() {
	for i := range o.waits {
		o.release(uint16(i))
	}
}
