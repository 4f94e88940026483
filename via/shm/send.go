package shm

import (
	"errors"

	"github.com/viablk/viablk/via"
)

// errMemoryGone is the cause where local memory was deregistered under work.
var errMemoryGone = errors.New("local memory was deregistered under posted work")

// progressSend moves the works of the send queue, in order, until the ring is
// full, a turn is over or none is left. At reliable reception works stay in the
// queue until the peer has them.
func (l *link) progressSend() {
	budget := sendTurn
	l.stalled, l.awaiting = false, false
	if l.unacked != 0 && !l.takeAcknowledgements() {
		return
	}
	for l.sq.count() != l.unacked && !l.broken && l.sendCQ.room() && budget > 0 {
		w := l.sq.at(l.unacked)
		if l.faulty != nil {
			l.faulty.ask(w, l.sq.head+l.unacked)
		}
		var ok bool
		switch w.Op {
		case via.OpSend:
			ok = l.sendMessage(w, &budget)
		case via.OpRdmaWrite, via.OpRdmaRead:
			ok = l.rdma(w, &budget)
		}
		if !ok {
			break
		}
	}
	if l.unacked != 0 {
		l.stalled = true // until the peer's position moves
	}
}

// complete finishes the work at the head of the send queue.
func (l *link) complete(w *via.Work, status via.Status) {
	l.sq.pop()
	w.Status = status
	l.sendCQ.push(l, w)
}

// sent is called when the last record of a work is in the ring.
func (l *link) sent(w *via.Work) {
	if l.ends != nil {
		l.awaitAcknowledgement()
		return
	}
	l.complete(w, 0)
}

// sendMessage copies a Send into the ring, in fragments if need be. It returns
// false if it has to wait or the turn is over.
func (l *link) sendMessage(w *via.Work, budget *int) bool {
	if l.unreliable && w.Moved == 0 && !l.fits(w.Length) {
		l.drop(w)
		return true
	}
	for {
		room := l.room(recordHeader + min(int(w.Length-w.Moved), maxFragment))
		n := min(int(w.Length-w.Moved), maxFragment, room-recordHeader)
		if room < recordHeader || n < int(w.Length-w.Moved) && n < maxFragment/4 {
			if l.unreliable && !l.patient() {
				l.giveUp(w)
				return true
			}
			l.stall()
			return false
		}
		if !l.segmentsLive(w) {
			return l.failSend(w)
		}
		l.fragment(w, uint32(n))
		if l.broken {
			return false
		}
		if w.Moved == w.Length {
			l.stats.Sends++
			l.sent(w)
			return true
		}
		if *budget -= int(n); *budget <= 0 {
			return false
		}
	}
}

// room returns the free bytes of the ring; it looks at the peer's position only
// if fewer than want are known to be free.
func (l *link) room(want int) int {
	if l.out.far() && loadWord(l.peer.mem, offHead) == l.out.tail && l.out.setHead(l.out.tail) == nil {
		l.out.rewind()
	}
	if free := l.out.free(); free >= want {
		return free
	}
	if err := l.out.setHead(loadWord(l.peer.mem, offHead)); err != nil {
		l.fail(via.AsyncConnectionLost, err)
	}
	return l.out.free() &^ (recordAlign - 1)
}

// stall notes that the ring is full and lets the peer see what is in it.
func (l *link) stall() {
	l.stalled = true
	l.stats.Stalls++
	l.Doorbell()
}

// fragment writes one record of n bytes of a message.
func (l *link) fragment(w *via.Work, n uint32) {
	r := record{length: n, tag: tag{kind: recordMessage}, total: w.Length}
	if w.Moved == 0 {
		r.flags |= flagFirst
	}
	if w.Moved+n == w.Length {
		r.flags |= flagLast
		if w.HasImmediate {
			r.flags |= flagImmediate
			r.immediate = w.Immediate
		}
	}
	start := l.out.tail
	l.out.begin(r)
	if len(w.Segments) == 1 {
		l.out.put(w.Segments[0].Bytes[w.Moved : w.Moved+n])
	} else {
		l.gather(w, int(n))
	}
	l.out.end()
	w.Moved += n
	l.stats.BytesCopied += uint64(n)
	if l.faulty != nil {
		l.disturb(start, r)
	}
}

// gather puts n bytes into the ring from where the message has got to.
func (l *link) gather(w *via.Work, n int) {
	skip, left := int(w.Moved), n
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+left)]
		skip = 0
		l.out.put(b)
		if left -= len(b); left == 0 {
			break
		}
	}
}

// segmentsLive reports whether the memory of a work is still registered, under the
// VI's tag: it may have waited since its post was checked.
func (l *link) segmentsLive(w *via.Work) bool {
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != l.tag {
			return false
		}
	}
	return true
}

// failSend completes a Send whose local memory is gone; the peer hears if it has
// a part of the message. It returns false if the work has to wait for
// acknowledgements, so that works complete in order.
func (l *link) failSend(w *via.Work) bool {
	if l.unacked != 0 {
		return false
	}
	if w.Moved != 0 {
		l.abort()
	}
	l.complete(w, via.StatusProtectionError)
	if !l.unreliable {
		l.Doorbell()
		l.fail(via.AsyncConnectionLost, errMemoryGone)
	}
	return true
}
