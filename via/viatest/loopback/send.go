package loopback

import "github.com/viablk/viablk/via"

// carryOut carries out what is staged, once both ends have started. It runs on
// the sender's goroutine, through both ends, until nothing moves any more.
//
// +checklocks:l.conn.mu
func (l *link) carryOut() {
	access := &l.conn.net.access
	for moving := true; moving && l.peer().started && !l.conn.broken; {
		access.RLock()
		moving = l.move()
		access.RUnlock()
	}
}

// move does the next thing that there is to do; false is none. The connection's
// lock and access are held.
//
// The caller holds l.conn.mu.
// +checklocksignore
func (l *link) move() bool {
	p := l.peer()
	switch {
	case l.out.cut || p.out.cut:
		l.conn.breakLocked(lost, lost, errCut)
	case l.pending == nil && l.staged.n > 0:
		l.execute(l.staged.pop())
	case l.out.release():
		l.deliver()
	case p.out.release():
		p.deliver()
	default:
		l.overdue()
		return false
	}
	return true
}

// overdue finds what has not arrived although nothing is in flight: where units
// take time, a timer and a question to the peer do this.
func (l *link) overdue() {
	switch w := l.pending; {
	case w != nil:
		l.pending = nil
		event := lost
		if w.Op == via.OpRdmaRead {
			event = via.AsyncRdmaTransport
		}
		l.fail(w, via.StatusTransportError, event, errLost)
	case l.peer().got != l.sent && !l.unreliable():
		l.conn.breakLocked(lost, lost, errLost) // +checklocksfail
	}
}

// answered says whether a work is done by the peer's answer. The others are
// done when they are in flight.
func (l *link) answered(w *via.Work) bool {
	return w.Op == via.OpRdmaRead || l.cfg.Reliability == via.ReliableReception
}

// execute sends one work.
func (l *link) execute(w *via.Work) {
	if !l.allowed(w) {
		l.fail(w, via.StatusProtectionError, lost, errLocal)
		return
	}
	l.sent++
	l.stats.Records++
	l.injectFault(w)
	size := int(w.Length)
	switch w.Op {
	case via.OpSend:
		l.stats.Sends++
	case via.OpRdmaWrite:
		l.stats.RdmaWrites++
	default:
		l.stats.RdmaReads++
		size = 0 // a request has no bytes
	}
	if size > 0 {
		gather(l.out.room(size), w.Segments)
		l.stats.BytesCopied += uint64(size)
	}
	if l.answered(w) {
		l.pending = w
	} else {
		l.done(l.send, w, 0, w.Length)
	}
	l.out.put(header(l.sent, w), size)
	l.deliver()
}

// injectFault asks which fault a work suffers, under test. That of an RDMA Read
// strikes the answer, which has the bytes.
func (l *link) injectFault(w *via.Work) {
	if l.cfg.Faults == nil {
		return
	}
	out := &l.out
	if w.Op == via.OpRdmaRead {
		out = &l.peer().out
	}
	out.fault = l.cfg.Faults.Next(w)
}

// deliver lets what is on the wire to the peer arrive.
func (l *link) deliver() {
	p := l.peer()
	for i := range l.out.flight {
		if u := &l.out.flight[i]; u.answer {
			p.conclude(u)
		} else {
			p.arrive(u)
		}
	}
	l.out.flight = l.out.flight[:0]
}

// conclude takes the answer to a work. Where that is an error the peer breaks
// the connection.
func (l *link) conclude(u *unit) {
	w := l.pending
	if w == nil || u.seq != l.sent {
		l.stats.Dropped++ // it was here
		return
	}
	l.pending = nil
	switch {
	case u.status != 0:
		l.done(l.send, w, u.status, 0)
	case w.Op != via.OpRdmaRead:
		l.done(l.send, w, 0, w.Length)
	default:
		l.fetched(w, u)
	}
}

// fetched takes the bytes of an RDMA Read.
func (l *link) fetched(w *via.Work, u *unit) {
	b, damage := u.payload()
	switch {
	case damage != nil:
		l.fail(w, via.StatusTransportError, via.AsyncRdmaTransport, damage.cause)
	case !l.allowed(w): // withdrawn since it was sent
		l.fail(w, via.StatusProtectionError, lost, errLocal)
	default:
		scatter(w.Segments, b)
		l.stats.BytesCopied += uint64(len(b))
		l.done(l.send, w, 0, w.Length)
	}
}

// fail completes a work in error, which breaks a reliable connection.
func (l *link) fail(w *via.Work, s via.Status, event via.AsyncCode, cause error) {
	l.done(l.send, w, s, 0)
	if !l.unreliable() {
		l.conn.breakFrom(l, event, cause)
	}
}

// allowed says whether the segments' regions are still what they were at the
// post: a region may be withdrawn while a descriptor names it.
func (l *link) allowed(w *via.Work) bool {
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != l.cfg.Tag {
			return false
		}
	}
	return true
}

// gather copies the bytes of segments to dst.
func gather(dst []byte, src []via.Segment) {
	for _, s := range src {
		dst = dst[copy(dst, s.Bytes):]
	}
}

// scatter copies src over the segments of dst, which hold it.
func scatter(dst []via.Segment, src []byte) {
	for _, s := range dst {
		src = src[copy(s.Bytes, src):]
	}
}
