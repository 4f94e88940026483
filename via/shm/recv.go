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
		if tail := loadWord(l.peer.mem, offTail); tail != l.in.tail {
			if err := l.in.setTail(tail); err != nil {
				l.fail(via.AsyncConnectionLost, err)
				return
			}
		}
	}
	for l.in.head != l.in.tail && l.recvCQ.room() && !l.broken {
		rec, ok, err := l.in.next()
		if err == nil && ok {
			err = l.receive(rec)
		}
		if err != nil {
			l.fail(via.AsyncConnectionLost, err)
			return
		}
		l.in.skip(rec)
	}
	l.publishHead()
	if l.ended && l.in.head == l.in.tail {
		l.fail(via.AsyncConnectionLost, errPeerGone)
	}
}

// publishHead tells the peer how far this end has read, and wakes it if it waits
// for room.
func (l *link) publishHead() {
	if l.in.head == l.in.pub {
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
	switch rec.kind {
	case recordMessage:
		return l.receiveFragment(rec)
	case recordWritten:
		return l.receiveWritten(rec)
	case recordRefused:
		return l.receiveRefusal(rec)
	default:
		return fmt.Errorf("record of unknown kind %d", rec.kind)
	}
}

// receiveRefusal ends the connection, because the peer does. A refused RDMA Write
// with immediate data is told by the receive that it would have consumed.
func (l *link) receiveRefusal(rec record) error {
	code := via.AsyncCode(rec.immediate)
	cause := errors.New("the peer refused an operation")
	switch {
	case code > via.AsyncCatastrophic || rec.length != 0 || rec.flags&^flagImmediate != 0:
		return fmt.Errorf("malformed refusal with code %d", rec.immediate)
	case rec.flags == 0:
		l.fail(code, cause)
		return nil
	case l.current != nil || code != via.AsyncRdmaWriteProt:
		return fmt.Errorf("malformed refusal of a write with code %d", rec.immediate)
	}
	if w := l.takeReceive(); w != nil {
		l.recvCQ.push(via.Done{Work: w, Owner: l.cfg.Owner, Status: via.StatusRdmaProtError | via.StatusOpRemoteWrite})
		l.fail(via.AsyncConnectionLost, cause)
	}
	return nil
}

// receiveFragment copies a piece of a message into the receive at the head of
// the queue.
func (l *link) receiveFragment(rec record) error {
	if first := rec.flags&flagFirst != 0; first != (l.current == nil) {
		return errors.New("message fragments out of order")
	}
	if rec.flags&(flagImmediate|flagLast) == flagImmediate {
		return errors.New("immediate data before the end of a message")
	}
	if l.current == nil {
		w := l.takeReceive()
		if w == nil {
			return nil
		}
		l.current, l.total = w, rec.total
		if rec.total > w.Length {
			l.failReceive(via.StatusLengthError)
			return nil
		}
	}
	w := l.current
	if rec.total != l.total || rec.length > l.total-w.Moved {
		return errors.New("message longer than its first fragment said")
	}
	if !segmentsLive(w) { // looked at for each fragment: memory may be unmapped once it is deregistered
		l.failReceive(via.StatusProtectionError)
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
	l.stats.Receives++
	l.completeRecv(w, 0, rec)
	return nil
}

// scatter copies n payload bytes to where the receive has got to.
func (l *link) scatter(w *via.Work, n int) {
	skip, off := int(w.Moved), 0
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+n-off)]
		skip = 0
		l.in.payload(off, b)
		if off += len(b); off == n {
			break
		}
	}
	w.Moved += uint32(n)
	l.stats.BytesCopied += uint64(n)
}

// receiveWritten consumes a receive for an RDMA Write with immediate data.
func (l *link) receiveWritten(rec record) error {
	if l.current != nil || rec.length != 0 || rec.flags != flagImmediate || rec.total > l.cfg.MaxTransferSize {
		return errors.New("malformed notice of an rdma write")
	}
	if rec.total > 0 && !l.cfg.RdmaWrite {
		return errors.New("notice of an rdma write that the vi does not allow")
	}
	w := l.takeReceive()
	if w == nil {
		return nil
	}
	w.Moved = rec.total
	l.stats.Receives++
	l.completeRecv(w, via.StatusOpRemoteWrite, rec)
	return nil
}

// takeReceive returns the next posted receive. Without one the connection
// breaks: at the reliable levels VIA has no retry.
func (l *link) takeReceive() *via.Work {
	if l.rq.empty() {
		l.refuse(refusal(via.AsyncConnectionLost), via.AsyncRecvQueueEmpty, errors.New("a message arrived and no receive was posted"))
		return nil
	}
	return l.rq.pop()
}

func (l *link) completeRecv(w *via.Work, status via.Status, rec record) {
	if rec.flags&flagImmediate != 0 {
		status |= via.StatusImmediate
	}
	l.recvCQ.push(via.Done{Work: w, Owner: l.cfg.Owner, Status: status, Length: w.Moved, Immediate: rec.immediate})
}

// failReceive completes the current receive in error and breaks the connection.
func (l *link) failReceive(status via.Status) {
	w := l.current
	l.current = nil
	l.recvCQ.push(via.Done{Work: w, Owner: l.cfg.Owner, Status: status})
	l.refuse(refusal(via.AsyncConnectionLost), via.AsyncConnectionLost, fmt.Errorf("an arriving message failed: %v", status|via.StatusDone))
}
