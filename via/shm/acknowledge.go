package shm

import (
	"errors"

	"github.com/viablk/viablk/via"
)

// Reliable reception. The peer publishes its read position only after it copied
// the bytes into receives: that position is the acknowledgement. A work is done
// when its last record lies before the position. A peer that meets an error
// publishes the position up to the failed record, sends a notice (notice.go)
// and reads no further: the oldest unacknowledged work is the one that failed.
//
// RDMA accesses the peer's memory at once, so an operation waits until all
// earlier works are acknowledged.

// place returns the index in ends, and in faultyWire.held, of work i of the
// send queue, counted from the oldest.
func (s *sender) place(i uint32) uint32 {
	return (s.sq.Popped() + i) & uint32(s.sq.Cap()-1)
}

// awaitAcknowledgement notes the end of the records of the oldest work that was
// not sent yet.
func (s *sender) awaitAcknowledgement() {
	i := s.place(s.unacked)
	s.ends[i] = s.out.tail
	if s.faulty != nil && s.faulty.holds(i) {
		s.ends[i] += 2 * ringSize // it is not in the ring yet
	}
	s.unacked++
}

// loadAcknowledgements loads the peer's position and completes the acknowledged
// works.
func (s *sender) loadAcknowledgements() error {
	if err := s.out.setHead(loadWord(s.peer.mem, offHead)); err != nil {
		return err
	}
	s.completeAcknowledged()
	return nil
}

// lastAcknowledgements completes what the peer had acknowledged when the
// connection broke.
func (s *sender) lastAcknowledgements() {
	if s.unacked != 0 {
		_ = s.loadAcknowledgements() // the link has a cause already
	}
}

// completeAcknowledged completes the works whose records lie before the last
// known position of the peer.
func (s *sender) completeAcknowledged() {
	for s.unacked != 0 && s.cq.room() {
		if end := s.ends[s.place(0)]; int64(s.out.head-end) < 0 {
			return
		}
		s.unacked--
		s.complete(*s.sq.First(), 0)
	}
}

// refusedWork completes the work that the peer refused with the peer's status.
// The end of the connection flushes later works.
func (s *sender) refusedWork(status via.Status) error {
	if err := s.loadAcknowledgements(); err != nil {
		return err
	}
	w := *s.sq.First() // nil if the queue is empty
	switch begun := w != nil && w.Op == via.OpSend && w.Moved != 0; {
	case s.unacked != 0:
		s.unacked--
	case !begun:
		return errors.New("the peer refused a work that was not sent")
	}
	if s.cq.room() {
		s.complete(w, status)
	}
	return nil
}
