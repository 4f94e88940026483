package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// receive handles a response of the peer. A peer that acknowledges falsely
// deceives only itself; no peer can acknowledge a packet that was never sent.
// Like all methods of a half that return a Status, it returns why the
// connection breaks, or OK. A response travels
//
//	1 receive               extends its PSN to a number of this end
//	2 receiveReadResponse   copies the payload to the Read's segments, or
//	  receiveAcknowledge    raises acked, all before which the peer has executed
//	3 completeAcknowledged  completes works, grows the window, restarts the timer
//	4 retransmitRead        requests missing responses again, or
//	  retransmitMissing     goes back to the packet that a NAK names, or
//	  startRNRDelay         pauses for the peer's receive, or
//	  refusedByPeer         ends the work and the connection
func (q *requester) receive(p *wire.Packet, now time.Duration) Status {
	s := q.una.near(p.PSN)
	switch p.Opcode.Operation() {
	case wire.OpReadResponse:
		return q.receiveReadResponse(p, s, now)
	case wire.OpAcknowledge:
		return q.receiveAcknowledge(p.AETH.Syndrome, s, now)
	}
	q.counters.Ignored++
	return OK
}

// receiveCNP shrinks the window, as for a loss: a switch on the path marked a
// packet of this end.
func (q *requester) receiveCNP() {
	q.counters.Congestion++
	q.window.lost(q.una, 1, q.highest, false)
}

// receiveAcknowledge handles an ACK of packet s and all before it, or a NAK of
// packet s, which acknowledges all before it.
func (q *requester) receiveAcknowledge(syndrome wire.Syndrome, s seq, now time.Duration) Status {
	if q.answersProbe(s, now) {
		return OK
	}
	kind := syndrome.Kind()
	done, least := s, q.acked
	switch {
	case kind == wire.KindACK:
		done++
		least++
	case kind == wire.KindNAK && syndrome != wire.NAKSequence:
		least = q.una // a Read that was asked for again may be refused
	}
	if done < least || s >= q.highest {
		q.counters.Ignored++
		return OK
	}
	q.acked = max(q.acked, done)
	q.completeAcknowledged(now)
	switch kind {
	case wire.KindACK:
		q.retransmitRead(now)
	case wire.KindRNR:
		q.counters.RNRsReceived++
		return q.startRNRDelay(syndrome.Delay(), now)
	case wire.KindNAK:
		q.counters.NAKsReceived++
		if syndrome != wire.NAKSequence {
			return q.refusedByPeer(syndrome, s)
		}
		q.retransmitMissing(now)
	}
	return OK
}

// completeAcknowledged completes works and updates the state of what is in
// flight.
func (q *requester) completeAcknowledged(now time.Duration) {
	before := q.una
	for w := q.sends.oldest(); w != nil; w = q.sends.oldest() {
		complete := max(w.first, min(q.acked, w.end()))
		if w.Op == Read {
			q.absorb(w)
			complete = w.first + seq(w.got)
		}
		q.una = complete
		if complete < w.end() {
			break
		}
		q.end(w, OK)
	}
	q.skipTo = max(q.skipTo, q.acked)
	q.next = max(q.next, q.una)
	q.pieces.release(q.una)
	if q.una > before {
		q.window.acknowledged(int(q.una - before))
		q.progress(now)
	}
}

// refusedByPeer ends the work of packet s, which the peer refused. An earlier
// Read that misses responses cannot complete any more.
func (q *requester) refusedByPeer(syndrome wire.Syndrome, s seq) Status {
	status := RemoteInvalid
	switch syndrome {
	case wire.NAKRemoteAccess:
		status = RemoteAccess
	case wire.NAKRemoteOperational:
		status = RemoteOperational
	}
	for w := q.sends.oldest(); w != nil && w.first <= s; w = q.sends.oldest() {
		if w.end() > s {
			q.end(w, status)
			break
		}
		q.end(w, Flushed)
	}
	return status
}
