package shm

import (
	"time"

	"github.com/viablk/viablk/via"
)

// Unreliable delivery never waits for the peer: a message for which the ring has
// no room is dropped. The exception is what the ring could not hold if it were
// empty. Of such a message, once its first fragment is in the ring, the others
// wait for room, and likewise an RDMA Write for an arena that is under way: as
// long as the peer moves, and for the link's patience after it has stopped. The
// owner does not get to sleep meanwhile: nobody would wake it at the end of that.

// wait is what an unreliable work waits for, and since when.
type wait struct {
	head  uint64 // the peer's position
	work  uint32 // position in the send queue
	since time.Time
}

// fits reports whether a message may be put into the ring now: all of it, or a
// beginning if the ring is too small for it.
func (l *link) fits(length uint32) bool {
	whole := int(length/maxFragment) * (recordHeader + maxFragment)
	if rest := int(length % maxFragment); rest != 0 || length == 0 {
		whole += recordHeader + (rest+recordAlign-1)&^(recordAlign-1)
	}
	if whole > len(l.out.ring)-l.out.kept {
		whole = recordHeader + maxFragment
	}
	return l.room(whole) >= whole
}

// drop completes a work whose message did not get on its way, or not all of it.
func (l *link) drop(w *via.Work) {
	l.stats.Dropped++
	w.Moved = w.Length
	l.complete(w, 0)
}

// giveUp drops what is left of a message.
func (l *link) giveUp(w *via.Work) {
	if w.Moved != 0 {
		l.abort()
	}
	l.drop(w)
}

// patient reports whether the work at the head of the send queue goes on waiting.
func (l *link) patient() bool {
	now := time.Now()
	if w := &l.waits; w.head != l.out.head || w.work != l.sq.head || w.since.IsZero() {
		*w = wait{head: l.out.head, work: l.sq.head, since: now}
	}
	return now.Sub(l.waits.since) < l.patience
}

// abort tells the peer that the message whose fragments came last has no end.
// There is room: fragments leave the bytes free that the ring keeps.
func (l *link) abort() {
	l.out.begin(record{tag: tag{kind: recordAborted}})
	l.out.end()
}

// skip drops the rest of the arriving message.
func (l *link) skip(rec record) {
	l.skipping = rec.kind == recordMessage && rec.flags&flagLast == 0
}
