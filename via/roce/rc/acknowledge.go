package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// receiveAnswer takes a packet that answers a request. A peer can only deceive
// itself about what it says it has done; what was never sent cannot be answered.
func (q *QP) receiveAnswer(p *wire.Packet, now time.Duration) {
	s := q.una.near(p.PSN)
	switch p.Opcode.Operation() {
	case wire.OpReadResponse:
		q.receiveResponse(p, s, now)
	case wire.OpAcknowledge:
		q.receiveAcknowledge(p.AETH.Syndrome, s, now)
	default:
		q.counters.Ignored++
	}
}

// receiveAcknowledge takes an ACK of packet s and all before it, or a NAK of
// packet s, which acknowledges all before it.
func (q *QP) receiveAcknowledge(syndrome wire.Syndrome, s seq, now time.Duration) {
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
		return
	}
	q.acked = max(q.acked, done)
	q.settle(now)
	switch kind {
	case wire.KindACK:
		q.readAgain(now)
	case wire.KindRNR:
		q.counters.RNRsReceived++
		q.wait(syndrome.Delay(), now)
	case wire.KindNAK:
		q.counters.NAKsReceived++
		if syndrome == wire.NAKSequence {
			q.sendAgain(now)
			return
		}
		q.refusedByPeer(syndrome, s)
	}
}

// settle ends the works that are complete, and keeps the books of what is under
// way.
func (q *QP) settle(now time.Duration) {
	before := q.una
	for w := q.sends.oldest(); w != nil; w = q.sends.oldest() {
		settled := max(w.first, min(q.acked, w.end()))
		if w.Op == Read {
			q.absorb(w)
			settled = w.first + seq(w.got)
		}
		q.una = settled
		if settled < w.end() {
			break
		}
		q.endWork(w, OK)
	}
	q.resend = max(q.resend, q.acked)
	q.next = max(q.next, q.una)
	q.pieces.settle(q.una)
	if q.una > before {
		q.window.acknowledged(int(q.una - before))
		q.progress(now)
	}
}

// refusedByPeer ends the work of packet s, which the peer refused, and the
// connection. A Read before it that misses responses will never have them.
func (q *QP) refusedByPeer(syndrome wire.Syndrome, s seq) {
	status := RemoteInvalid
	switch syndrome {
	case wire.NAKRemoteAccess:
		status = RemoteAccess
	case wire.NAKRemoteOperational:
		status = RemoteOperational
	}
	for w := q.sends.oldest(); w != nil && w.first <= s; w = q.sends.oldest() {
		if w.end() > s {
			q.endWork(w, status)
			break
		}
		q.endWork(w, Flushed)
	}
	q.fail(status)
}
