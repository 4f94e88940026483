package shm

import (
	"fmt"

	"github.com/viablk/viablk/via"
)

// rdmaStep bounds the bytes that one turn of a link moves by RDMA, so that a
// long transfer does not hold up the other links of a queue.
const rdmaStep = 1 << 20

// progressSend moves the work at the head of the send queue, in order, until the
// ring is full, a turn is over or the queue is empty.
func (l *link) progressSend() {
	budget := rdmaStep
	l.stalled, l.awaiting = false, false
	for !l.sq.empty() && !l.broken && l.sendCQ.room() && budget > 0 {
		w := l.sq.first()
		var ok bool
		switch w.Op {
		case via.OpSend:
			ok = l.sendMessage(w)
		case via.OpRdmaWrite, via.OpRdmaRead:
			ok = l.rdma(w, &budget)
		}
		if !ok {
			return
		}
	}
}

// complete finishes the work at the head of the send queue.
func (l *link) complete(w *via.Work, status via.Status) {
	l.sq.pop()
	l.sendCQ.push(via.Done{Work: w, Owner: l.cfg.Owner, Status: status, Length: w.Moved})
}

// sendMessage copies a Send into the ring, in fragments if need be. It returns
// false if the ring is full.
func (l *link) sendMessage(w *via.Work) bool {
	for {
		room := l.room(recordHeader + min(int(w.Length-w.Moved), maxFragment))
		n := min(int(w.Length-w.Moved), maxFragment, room-recordHeader)
		if room < recordHeader || n < int(w.Length-w.Moved) && n < maxFragment/4 {
			l.stall()
			return false
		}
		if !l.fragment(w, uint32(n)) {
			return false
		}
		if w.Moved == w.Length {
			l.stats.Sends++
			l.complete(w, 0)
			return true
		}
	}
}

// room returns the free bytes of the ring; it looks at the peer's position only
// if fewer than want are known to be free.
func (l *link) room(want int) int {
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
func (l *link) fragment(w *via.Work, n uint32) bool {
	r := record{length: n, kind: recordMessage, total: w.Length}
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
	if !segmentsLive(w) {
		l.protectionError(w)
		return false
	}
	l.out.begin(r)
	skip, left := int(w.Moved), int(n)
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
	l.out.end()
	w.Moved += n
	l.stats.BytesCopied += uint64(n)
	return true
}

// segmentsLive reports whether the memory of a work is still registered: it may
// have waited since its post was checked.
func segmentsLive(w *via.Work) bool {
	for i := range w.Segments {
		if !w.Segments[i].Memory.Live() {
			return false
		}
	}
	return true
}

// protectionError completes work whose local memory is gone; at the reliable
// levels the connection breaks.
func (l *link) protectionError(w *via.Work) {
	l.complete(w, via.StatusProtectionError)
	l.fail(via.AsyncConnectionLost, fmt.Errorf("local memory was deregistered under posted work"))
}
