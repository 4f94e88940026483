package rc

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// QP is one end of a connection. One goroutine at a time drives it. It never
// blocks, and only New allocates in steady state.
//
// The requester owns the send queue and the PSNs that this end sends, the
// responder the receive queue and the PSNs that it expects. Neither knows the
// other: a method of a half that breaks the connection returns the cause, and
// the QP breaks both.
type QP struct {
	requester requester
	responder responder

	class wire.Class
	cause Status // OK until the QP is broken

	received, ignored, damaged uint64 // packets; both halves count the rest
}

// half is what each half of a QP has for itself.
type half struct {
	cfg      Config
	memory   Memory
	counters Counters
}

// start returns a header for a packet; the burst keeps it until the next one.
func (h *half) start(b *Burst, op wire.Opcode, at seq) *wire.Packet {
	p := &b.header
	b.tag = h.cfg.Tag
	p.BTH = wire.BTH{Opcode: op, PKey: h.cfg.PKey, DestQP: h.cfg.PeerQP, PSN: at.psn()}
	return p
}

// New returns a QP that is ready to send and to receive.
func New(c Config, m Memory) (*QP, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("queue pair configuration: %w", err)
	}
	q := &QP{class: wire.RC}
	if c.Unreliable {
		q.class = wire.UC
	}
	h := half{cfg: c.withDefaults(), memory: m}
	q.requester.init(h)
	q.responder.init(h)
	return q, nil
}

// Post appends a work to the send queue. It returns false if the queue is full.
// On a broken QP the work is flushed.
func (q *QP) Post(w *Work) bool {
	if !q.requester.post(w) {
		return false
	}
	if q.cause != OK {
		q.requester.flush()
	}
	return true
}

// PostReceive appends a receive. It returns false if the queue is full. On a
// broken QP the receive is flushed.
func (q *QP) PostReceive(r *Receive) bool {
	if !q.responder.post(r) {
		return false
	}
	if q.cause != OK {
		q.responder.flush()
	}
	return true
}

// Receives returns how many posted receives are incomplete.
func (q *QP) Receives() int { return q.responder.receives.incomplete() }

// Stashed returns how many packets wait behind a gap. One call of Receive that
// fills the gap executes them, and each may complete a receive.
func (q *QP) Stashed() int { return q.responder.stashed.count }

// PollSend returns the next completed work in posting order, or nil.
func (q *QP) PollSend() *Work { return q.requester.sends.poll() }

// PollReceive returns the next completed receive in posting order, or nil.
func (q *QP) PollReceive() *Receive { return q.responder.receives.poll() }

// PollEvent returns the next event, or NoEvent.
func (q *QP) PollEvent() Event { return q.responder.events.poll() }

// Ended reports whether PollSend, PollReceive or PollEvent has something other
// than what was flushed when the QP broke.
func (q *QP) Ended() (send, receive, event bool) {
	return q.requester.sends.ended(), q.responder.receives.ended(), !q.responder.events.isEmpty()
}

// Cause returns why the QP is broken, or OK.
func (q *QP) Cause() Status { return q.cause }

// Counters returns the counters.
func (q *QP) Counters() Counters {
	c := q.requester.counters
	c.add(&q.responder.counters)
	c.Received += q.received
	c.Ignored += q.ignored
	c.Damaged += q.damaged
	w := &q.requester.window
	c.RTT, c.Window = w.trip.smooth, w.size
	return c
}

// Life returns a number that changes when the peer acknowledges or answers what
// was outstanding, or sends the next request. Packets that repeat others or are
// ahead do not change it: who sends one that does knows the PSN.
func (q *QP) Life() uint64 {
	life := uint64(q.responder.expected)
	if q.class == wire.RC {
		life += uint64(q.requester.una) + uint64(q.requester.acked)
	}
	return life
}

// AnswerTime returns how long an answer of the peer may take, by the round
// trips measured on its line, or 0 before the first.
func (q *QP) AnswerTime() time.Duration {
	if l := q.requester.cfg.Line; l != nil {
		return l.AnswerTime()
	}
	return q.requester.window.trip.timeout()
}

// Abandon has the line of the QP forget it. It is the last call, and may follow
// a panic of any other one.
func (q *QP) Abandon() { q.requester.abandon() }

// Timeouts returns how many time-outs in a row had no acknowledgement.
func (q *QP) Timeouts() int { return int(q.requester.schedule.backoff) }

// Receive handles a packet of the peer with a right ICRC, and the result of
// [wire.Packet.Decode]: Accepted, or an invalid request, which the QP answers.
// The caller owns the packet again when Receive returns.
func (q *QP) Receive(p *wire.Packet, r wire.Refusal, now time.Duration) {
	q.received++
	flags, class := p.Opcode.Flags(), p.Opcode.Class()
	switch {
	case class == wire.CNP && r == wire.Accepted:
		q.requester.receiveCNP()
	case class != q.class, r != wire.Accepted && (!r.IsInvalidRequest() || flags&wire.Response != 0):
		q.ignored++
	case q.cause != OK:
		q.responder.repeatNAK(p)
	case class == wire.UC:
		q.responder.receiveUnreliable(p, r)
	case flags&wire.Response != 0:
		q.failOn(q.requester.receive(p, now))
	default:
		q.failOn(q.responder.receive(p, r))
	}
}

// Continues reports whether a packet is the next request, or the response to a
// request in flight: its sender knows a PSN, or has guessed one.
func (q *QP) Continues(p *wire.Packet) bool {
	switch {
	case p.Opcode.Class() != q.class || q.cause != OK:
		return false
	case p.Opcode.Flags()&wire.Response == 0:
		return p.PSN == q.responder.expected.psn()
	}
	r := &q.requester
	s := r.una.near(p.PSN)
	return s >= r.una && s < r.highest
}

// Damaged reports a packet of the peer with a wrong ICRC, or cut short. The
// packet is lost; on RC the peer retransmits it. Its headers only name the loss
// of a message that cannot be retransmitted any more, and only if it is the
// expected packet.
func (q *QP) Damaged(h *wire.BTH, cut bool) {
	q.damaged++
	if q.cause == OK && h.Opcode.Class() == q.class && h.Opcode.Flags()&wire.Response == 0 {
		q.responder.receiveDamaged(h, cut)
	}
}

// Emit appends the packets to send now, as many as fit. Responses and requests
// share the room, so that neither delays the other. An acknowledgement goes
// last: it is less urgent than a read response.
func (q *QP) Emit(b *Burst, now time.Duration) {
	if q.responder.pendingReads.len() > 0 {
		q.failOn(q.responder.emit(b, (b.room()+1)/2))
	}
	reserve := 0
	if q.responder.ack.pending {
		reserve = 1
	}
	q.failOn(q.requester.emit(b, reserve, now))
	if q.responder.owes() {
		q.failOn(q.responder.emit(b, b.room()))
	}
}

// Deadline returns when Timeout is due, and false if never.
func (q *QP) Deadline() (time.Duration, bool) { return q.requester.schedule.deadline() }

// Timeout runs the timers that have expired. It may be called at any time.
func (q *QP) Timeout(now time.Duration) { q.failOn(q.requester.expire(now)) }

// Break breaks the QP: it flushes all works and receives, and sends only a
// pending refusal.
func (q *QP) Break() { q.failOn(Closed) }

// GiveUp breaks the QP because its peer is gone: the oldest work ends as after
// the last retry.
func (q *QP) GiveUp() {
	if q.cause == OK {
		q.failOn(q.requester.giveUp(RetriesExceeded))
	}
}

// FinalAck returns the answer to all that the peer has sent so far: the refusal
// that broke this end, or the acknowledgement of what is executed. A closing
// end can send it to its peer by other means, in case the answers are lost. It
// has no meaning on UC.
func (q *QP) FinalAck() (wire.AETH, wire.PSN) { return q.responder.finalAck() }

// failOn breaks the QP if a half returned a cause.
func (q *QP) failOn(cause Status) {
	if cause != OK {
		q.fail(cause)
	}
}

// fail breaks the QP. Only the first cause counts.
func (q *QP) fail(cause Status) {
	if q.cause != OK {
		return
	}
	q.cause = cause
	q.responder.stop()
	q.requester.stop()
}
