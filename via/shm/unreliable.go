package shm

import (
	"time"

	"github.com/viablk/viablk/via"
)

// Unreliable delivery drops a message for which the ring has no room. Two cases
// wait: the later fragments of a message longer than the ring, once its first
// fragment is in the ring, and an RDMA Write whose arena is in flight. They
// wait while the peer's position advances, and for the link's timeout after it
// stopped. The driver cannot sleep meanwhile: no wake-up marks the timeout.

// stallTimer measures how long an unreliable work has waited.
type stallTimer struct {
	limit time.Duration
	head  uint64 // the peer's position
	work  uint32 // position in the send queue
	since time.Time
}

// allows reports whether a work may wait on while the peer is at a position.
func (t *stallTimer) allows(work uint32, head uint64) bool {
	now := time.Now()
	if t.head != head || t.work != work || t.since.IsZero() {
		t.head, t.work, t.since = head, work, now
	}
	return now.Sub(t.since) < t.limit
}

// fits reports whether the ring has room for a message, or for its first
// fragment if the message is longer than the ring.
func (s *sender) fits(length uint32) (bool, error) {
	whole := int(length/maxFragment) * (recordHeader + maxFragment)
	if rest := int(length % maxFragment); rest != 0 || length == 0 {
		whole += recordHeader + (rest+recordAlign-1)&^(recordAlign-1)
	}
	if whole > len(s.out.ring)-s.out.kept {
		whole = recordHeader + maxFragment
	}
	room, err := s.room(whole)
	return room >= whole, err
}

// dropMessage completes a work whose message was not sent, or not in full.
func (s *sender) dropMessage(w *via.Work) {
	s.stats.Dropped++
	w.Moved = w.Length
	s.complete(w, 0)
}

// abandonMessage drops the rest of a message.
func (s *sender) abandonMessage(w *via.Work) {
	if w.Moved != 0 {
		s.abortMessage()
	}
	s.dropMessage(w)
}

// withinTimeout reports whether the work at the head of the send queue may
// still wait.
func (s *sender) withinTimeout() bool { return s.timer.allows(s.sq.Popped(), s.out.head) }

// abortMessage ends a message that was sent in part. There is room: fragments
// leave writer.kept bytes free.
func (s *sender) abortMessage() {
	s.out.begin(record{tag: tag{kind: recordAborted}})
	s.out.end()
}

// skipRest discards the rest of the arriving message.
func (r *receiver) skipRest(rec record) {
	r.skipping = rec.kind == recordMessage && rec.flags&flagLast == 0
}
