package shm

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// errPeerGone is the cause of a connection lost because the peer closed it or
// died.
var errPeerGone = errors.New("the peer closed the connection")

// progressRecv takes records out of the peer's ring.
func (l *link) progressRecv() {
	if cause := l.cut.Load(); cause != nil {
		l.fail(via.AsyncConnectionLost, *cause)
		return
	}
	if !l.ended {
		l.ended = l.gone.Load() // before the tail: what was published before the end counts
		if l.in.head == l.in.tail || l.ended {
			l.see()
		}
	}
	for turn := recvTurn; turn > 0 && l.in.head != l.in.tail && l.recvCQ.room() && !l.broken; turn-- {
		rec, ok, err := l.in.next()
		if err == nil && ok {
			err = l.receive(rec)
		}
		if err != nil {
			l.fail(via.AsyncConnectionLost, err)
		}
		if l.broken {
			return // what failed is not acknowledged
		}
		l.in.skip(rec)
	}
	l.publishHead()
	if l.ended && l.in.head == l.in.tail {
		l.fail(via.AsyncConnectionLost, errPeerGone)
	}
}

// see looks at how far the peer has published.
func (l *link) see() {
	if word := loadWord(l.peer.mem, offTail); word != l.in.word {
		if err := l.in.setWord(word); err != nil {
			l.fail(via.AsyncConnectionLost, err)
		}
	}
}

// headStep is how far this end reads before it tells the peer: that costs both a
// cache line, and the peer asks for less than the rest of the ring.
const headStep = 1 << 10

// publishHead tells the peer how far this end has read, and wakes it if it waits
// for room.
func (l *link) publishHead() {
	if read := l.in.head - l.in.pub; read == 0 || read < headStep && !l.reception {
		return
	}
	l.in.pub = l.in.head
	storeWord(l.own.mem, offHead, l.in.head)
	wants := loadWord(l.peer.mem, offWants)
	if wants&wantSpace != 0 && wants>>wantShift != l.rungSpace {
		l.rungSpace = wants >> wantShift
		l.stats.Doorbells++
		ringBell(l.spaceFD)
	}
}

// receive handles one record; its header is checked, its payload is in the ring.
func (l *link) receive(rec record) error {
	if rec.seq != l.in.seq {
		if passed, err := l.outOfSequence(rec); passed || err != nil {
			return err
		}
	}
	l.in.seq = rec.seq + 1
	l.answered = true
	if rec.flags&flagSum != 0 && !l.in.intact(rec) {
		l.receiveDamaged(rec)
		return nil
	}
	switch rec.kind {
	case recordMessage:
		return l.receiveFragment(rec)
	case recordWritten:
		return l.receiveWritten(rec)
	case recordFailed:
		return l.receiveNotice(rec)
	case recordAborted, recordLost:
		return l.receiveEnd(rec)
	default:
		return fmt.Errorf("record of unknown kind %d", rec.kind)
	}
}

// receiveFragment copies a piece of a message into the receive at the head of
// the queue.
func (l *link) receiveFragment(rec record) error {
	if first := rec.flags&flagFirst != 0; first == (l.current != nil || l.skipping) {
		return errors.New("message fragments out of order")
	}
	if rec.flags&(flagImmediate|flagLast) == flagImmediate {
		return errors.New("immediate data before the end of a message")
	}
	if l.skipping {
		l.skip(rec)
		return nil
	}
	if l.current == nil {
		w := l.takeReceive(rec)
		if w == nil {
			return nil
		}
		l.current, l.total = w, rec.total
		if rec.total > w.Length {
			l.failReceive(rec, via.StatusLengthError, via.StatusRemoteDescError)
			return nil
		}
	}
	w := l.current
	if rec.total != l.total || rec.length > l.total-w.Moved {
		return errors.New("message longer than its first fragment said")
	}
	if !l.segmentsLive(w) { // looked at for each fragment: memory may be unmapped once it is deregistered
		l.failReceive(rec, via.StatusProtectionError, via.StatusRemoteDescError)
		return nil
	}
	l.scatter(w, int(rec.length))
	if rec.flags&flagLast == 0 {
		return nil
	}
	if w.Moved != l.total {
		return errors.New("message shorter than its first fragment said")
	}
	l.current = nil
	l.received++
	l.completeRecv(w, 0, rec)
	return nil
}

// scatter copies n payload bytes to where the receive has got to.
func (l *link) scatter(w *via.Work, n int) {
	skip, off := int(w.Moved), 0
	if len(w.Segments) == 1 {
		l.in.payload(0, w.Segments[0].Bytes[skip:skip+n])
		off = n
	}
	for i := 0; off < n; i++ {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+n-off)]
		skip = 0
		l.in.payload(off, b)
		off += len(b)
	}
	w.Moved += uint32(n)
	l.copied += uint64(n)
}

// receiveWritten consumes a receive for an RDMA Write with immediate data.
func (l *link) receiveWritten(rec record) error {
	if l.current != nil || l.skipping || rec.length != 0 || rec.flags&^flagSum != flagImmediate || rec.total > l.cfg.MaxTransferSize {
		return errors.New("malformed notice of an rdma write")
	}
	if rec.total > 0 && !l.cfg.RdmaWrite {
		return errors.New("notice of an rdma write that the vi does not allow")
	}
	w := l.takeReceive(rec)
	if w == nil {
		return nil
	}
	w.Moved = rec.total
	l.received++
	l.completeRecv(w, via.StatusOpRemoteWrite, rec)
	return nil
}

// takeReceive returns the next posted receive. Without one the message is lost:
// VIA has no retry.
func (l *link) takeReceive(rec record) *via.Work {
	if !l.rq.empty() {
		return l.rq.pop()
	}
	if l.unreliable {
		l.stats.Dropped++
		l.skip(rec)
		l.raise(via.AsyncRecvQueueEmpty, errNoReceive)
		return nil
	}
	l.refuseMessage(via.StatusRemoteDescError, via.AsyncRecvQueueEmpty, errNoReceive)
	return nil
}

func (l *link) completeRecv(w *via.Work, status via.Status, rec record) {
	if rec.flags&flagImmediate != 0 {
		status |= via.StatusImmediate
	}
	w.Status, w.Immediate = status, rec.immediate
	l.recvCQ.push(l, w)
}

// failReceive completes the current receive in error. At unreliable delivery the
// rest of the message is skipped; at the other levels the connection breaks, and
// remote is what the peer's work says at reliable reception.
func (l *link) failReceive(rec record, status, remote via.Status) {
	w := l.current
	l.current = nil
	w.Status = status
	l.recvCQ.push(l, w)
	if l.unreliable {
		l.skip(rec)
		return
	}
	l.refuseMessage(remote, via.AsyncConnectionLost, fmt.Errorf("an arriving message failed: %v", status|via.StatusDone))
}
