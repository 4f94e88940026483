package shm

import (
	"errors"

	"github.com/viablk/viablk/via"
)

// Reliable reception. The peer publishes how far it has read its ring only after
// it copied the bytes into receives: that position is the acknowledgement. A work
// whose last record lies before it is done. A peer that meets an error publishes
// the position up to the record that failed, says in a record of its own what
// went wrong (notice.go), and reads no further: the oldest work that is not
// acknowledged is the one that failed.
//
// RDMA touches the peer's memory at once, so an operation waits until everything
// before it is acknowledged.

// awaitAcknowledgement notes where the records of the work end that was the first
// not sent.
func (l *link) awaitAcknowledgement() {
	i := (l.sq.head + l.unacked) & l.sq.mask()
	l.ends[i] = l.out.tail
	if l.faulty != nil && l.faulty.holds(i) {
		l.ends[i] += 2 * ringSize // it is not in the ring yet
	}
	l.unacked++
}

// takeAcknowledgements looks at the peer's position and completes what is
// acknowledged. It returns false if the peer breaks the rules.
func (l *link) takeAcknowledgements() bool {
	if err := l.out.setHead(loadWord(l.peer.mem, offHead)); err != nil {
		l.fail(via.AsyncConnectionLost, err)
		return false
	}
	l.completeAcknowledged()
	if l.gone.Load() && !l.broken {
		// The receive queue's turn would find out why; its consumer may wait for
		// this one.
		l.progressRecv()
	}
	return !l.broken
}

// completeAcknowledged completes the works that the peer has, as far as its last
// known position says.
func (l *link) completeAcknowledged() {
	for l.unacked != 0 && l.sendCQ.room() {
		if end := l.ends[l.sq.head&l.sq.mask()]; int64(l.out.head-end) < 0 {
			return
		}
		l.unacked--
		l.complete(l.sq.first(), 0)
	}
}

// refusedWork completes the work that the peer refused, with the status that it
// says. What was posted later is flushed by the end of the connection.
func (l *link) refusedWork(status via.Status) error {
	if err := l.out.setHead(loadWord(l.peer.mem, offHead)); err != nil {
		return err
	}
	l.completeAcknowledged()
	switch begun := !l.sq.empty() && l.sq.first().Op == via.OpSend && l.sq.first().Moved != 0; {
	case l.unacked != 0:
		l.unacked--
	case !begun:
		return errors.New("the peer refused what was not sent")
	}
	if l.sendCQ.room() {
		l.complete(l.sq.first(), status)
	}
	return nil
}
