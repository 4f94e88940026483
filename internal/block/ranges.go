package block

import (
	"sync"

	"github.com/viablk/viablk/internal/contain"
)

// AtomicUnit is the unit in bytes in which overlapping requests are atomic: in
// each aligned unit, a Read sees all of a Write or nothing, and of two Writes
// one wins as a whole.
const AtomicUnit = 1 << unitShift

const (
	unitShift  = 12
	zoneUnits  = 64 // as many as a word has bits
	rangesHash = 6  // bits of the table's index

	// readerPlanes bounds how many readers of a unit are counted. One more
	// waits.
	readerPlanes = 7

	// unusedZones bounds the zones that a bucket keeps without users: every
	// access passes those of its bucket, and a long range has used many.
	unusedZones = 8
)

// Ranges are the parts of a disk that requests are moving data from and to, in
// units of [AtomicUnit]: readers of a unit share it, a writer has it alone.
// Overlapping accesses are serialized; others cost two short table operations
// each. Waiters are granted in order: no request overtakes a waiter whose range
// it overlaps.
//
// A waiter blocks no thread, see [Ranges.Acquire]. A holder waits only for its
// own data transfer, or for ranges at higher offsets, so deadlock is
// impossible.
//
// A nil *Ranges serializes nothing. All methods are safe for concurrent use.
type Ranges struct {
	table [1 << rangesHash]bucket
}

// bucket is the zones with the same hash: one entry, and a chain of more if
// several were in use at a time.
type bucket struct {
	mu sync.Mutex
	// +checklocks:mu
	first zone // guarded by mu, and so are those behind it
	// +checklocks:mu
	chained int // zones behind the first
}

// zone is 64 units of the disk, a bit of each word for each.
type zone struct {
	number  int64
	users   int    // holders and waiters; without any it may become another zone
	writers uint64 // units that a writer has

	// readers counts the readers of all units at once: bit i of plane p is bit
	// p of the count of unit i.
	readers [readerPlanes]uint64

	// Units that waiters want, in the order of arrival.
	wantRead, wantWrite uint64
	head, tail          *Wait

	next *zone
}

// NewRanges returns the ranges of a disk, of which nothing is held.
func NewRanges() *Ranges { return new(Ranges) }

// Wait is a place in the queue for a range. The waiter provides it, and owns it
// again when Granted is called.
type Wait struct {
	// Granted is called once, when the range is held. The goroutine that calls
	// it holds no lock and has other things to do.
	Granted func()

	span unitSpan
	at   int64 // zone that it waits for; it holds those below
	next *Wait
}

// unitSpan is a range in units.
type unitSpan struct {
	first, last int64
	write       bool
}

// spanOf returns the units of n > 0 bytes at off.
func spanOf(off, n int64, write bool) unitSpan {
	return unitSpan{off >> unitShift, (off + n - 1) >> unitShift, write}
}

// zones returns the first and the last zone.
func (s *unitSpan) zones() (first, last int64) { return s.first / zoneUnits, s.last / zoneUnits }

// mask returns the units in a zone.
func (s *unitSpan) mask(number int64) uint64 {
	low := max(s.first-number*zoneUnits, 0)
	high := min(s.last-number*zoneUnits, zoneUnits-1)
	return ^uint64(0) << uint(low) & (^uint64(0) >> uint(zoneUnits-1-high))
}

// TryAcquire holds n > 0 bytes at off, for writing or for reading, if that is
// possible at once.
func (r *Ranges) TryAcquire(off, n int64, write bool) bool {
	if r == nil {
		return true
	}
	s := spanOf(off, n, write)
	first, last := s.zones()
	for number := first; number <= last; number++ {
		if !r.acquireZone(number, s.mask(number), write) {
			r.releaseZones(&s, first, number-1)
			return false
		}
	}
	return true
}

// Acquire holds n > 0 bytes at off and returns true, or returns false and has
// w.Granted called later, which may be before it returns. It does not block. A
// request acquires one range at a time: it holds none while it waits for
// another.
func (r *Ranges) Acquire(w *Wait, off, n int64, write bool) bool {
	if r == nil {
		return true
	}
	w.span = spanOf(off, n, write)
	w.at, _ = w.span.zones()
	return r.acquireRest(w)
}

// Release ends a hold. off, n and write are those of its beginning.
func (r *Ranges) Release(off, n int64, write bool) {
	if r == nil {
		return
	}
	s := spanOf(off, n, write)
	first, last := s.zones()
	r.releaseZones(&s, first, last)
}

// bucket returns where a zone is.
func (r *Ranges) bucket(number int64) *bucket {
	return &r.table[uint64(number)*0x9e3779b97f4a7c15>>(64-rangesHash)]
}

// acquireZone acquires units of a zone if they are free.
func (r *Ranges) acquireZone(number int64, mask uint64, write bool) bool {
	defer contain.Shared()
	b := r.bucket(number)
	b.mu.Lock()
	z := b.zone(number)
	ok := !z.conflicts(mask, write)
	if ok {
		z.addHolder(mask, write)
		z.users++
	}
	b.mu.Unlock()
	return ok
}

// acquireRest acquires the remaining zones of a waiter, in order. It returns
// false when it has to wait for one; the caller must not touch the waiter after
// that.
func (r *Ranges) acquireRest(w *Wait) bool {
	defer contain.Shared()
	for _, last := w.span.zones(); w.at <= last; w.at++ {
		b, mask := r.bucket(w.at), w.span.mask(w.at)
		b.mu.Lock()
		z := b.zone(w.at)
		z.users++
		if z.conflicts(mask, w.span.write) {
			z.addWaiter(w, mask)
			b.mu.Unlock()
			return false
		}
		z.addHolder(mask, w.span.write)
		b.mu.Unlock()
	}
	return true
}

// releaseZones releases the zones from first to last and grants waiters.
func (r *Ranges) releaseZones(s *unitSpan, first, last int64) {
	defer contain.Shared()
	for number := first; number <= last; number++ {
		b := r.bucket(number)
		b.mu.Lock()
		z := b.zone(number)
		z.removeHolder(s.mask(number), s.write)
		z.users--
		var granted *Wait
		if z.head != nil {
			granted = z.grant()
		}
		if z.users == 0 && b.chained > unusedZones {
			b.remove(z)
		}
		b.mu.Unlock()
		for granted != nil {
			w := granted
			granted, w.next = w.next, nil
			if w.at++; r.acquireRest(w) {
				w.Granted()
			}
		}
	}
}

// zone returns a zone of the bucket, a new one if it has no users.
//
// The caller holds b.mu and passes on a pointer into b.
// +checklocksignore
func (b *bucket) zone(number int64) *zone {
	var free *zone
	for z := &b.first; ; z = z.next {
		switch {
		case z.number == number:
			return z
		case z.users == 0 && free == nil:
			free = z
		}
		if z.next == nil {
			if free == nil {
				free = new(zone)
				z.next = free
				b.chained++
			}
			free.number = number
			return free
		}
	}
}

// remove removes a zone without users from the chain.
//
// The caller holds b.mu.
// +checklocksignore
func (b *bucket) remove(unused *zone) {
	for z := &b.first; z.next != nil; z = z.next {
		if z.next == unused {
			z.next = unused.next
			b.chained--
			return
		}
	}
}

// conflicts reports whether units are held or wanted by an access that does not
// share them.
func (z *zone) conflicts(mask uint64, write bool) bool {
	units := z.writers | z.wantWrite
	if write {
		units |= z.wantRead
		for _, plane := range &z.readers {
			units |= plane
		}
		return mask&units != 0
	}
	full := mask
	for _, plane := range &z.readers {
		full &= plane
	}
	return mask&units|full != 0
}

// addHolder records a holder of units without conflict.
func (z *zone) addHolder(mask uint64, write bool) {
	if write {
		z.writers |= mask
		return
	}
	carry := mask
	for p := 0; carry != 0; p++ {
		z.readers[p], carry = z.readers[p]^carry, z.readers[p]&carry
	}
}

// removeHolder removes a holder.
func (z *zone) removeHolder(mask uint64, write bool) {
	if write {
		z.writers &^= mask
		return
	}
	borrow := mask
	for p := 0; borrow != 0; p++ {
		z.readers[p], borrow = z.readers[p]^borrow, borrow&^z.readers[p]
	}
}

// addWaiter adds a waiter.
func (z *zone) addWaiter(w *Wait, mask uint64) {
	if w.next = nil; z.head == nil {
		z.head = w
	} else {
		z.tail.next = w
	}
	z.tail = w
	z.want(mask, w.span.write)
}

// want records units that a waiter wants.
func (z *zone) want(mask uint64, write bool) {
	if write {
		z.wantWrite |= mask
	} else {
		z.wantRead |= mask
	}
}

// grant dequeues and returns the waiters that hold their units now.
func (z *zone) grant() (granted *Wait) {
	end, waiters := &granted, z.head
	z.head, z.tail, z.wantRead, z.wantWrite = nil, nil, 0, 0
	for w := waiters; w != nil; {
		next, mask := w.next, w.span.mask(z.number)
		if z.conflicts(mask, w.span.write) {
			z.addWaiter(w, mask)
		} else {
			z.addHolder(mask, w.span.write)
			w.next = nil
			*end, end = w, &w.next
		}
		w = next
	}
	return granted
}
