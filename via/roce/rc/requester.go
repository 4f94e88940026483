package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// requester is the half of a QP that sends requests. It owns the send queue,
// the PSNs of this end, the congestion window and the retransmission timers.
//
// A request travels
//
//	1 post                  the work takes its PSNs; from here on the QP owns its
//	                        memory
//	2 emit                  finds the next packet to send, new or lost, that the
//	                        window admits
//	3 emitPacket, emitRead  writes the headers; the payload stays in the work's
//	                        segments, to which the burst refers
//	4 sent                  advances next and arms the timer
//	5 receive               handles an ACK, NAK or read response, which it copies
//	                        to the work's segments
//	6 completeAcknowledged  completes works in posting order; PollSend returns
//	                        them to the consumer with their memory
//
// The numbers are in this order; acked and next are not for a while after a
// loss:
//
//	una ≤ acked ≤ next ≤ highest ≤ last
type requester struct {
	half
	sends queue[Work]

	una     seq    // the first incomplete packet: no ACK, or a response missing
	acked   seq    // the peer has executed all before it
	next    seq    // the next packet to send
	skipTo  seq    // packets before it, outside the hole, are not retransmitted
	holeEnd seq    // next to holeEnd is missing, if not empty
	highest seq    // behind the last packet that was ever sent
	last    seq    // behind the last packet of the last work
	cur     uint64 // the work of next, in sends

	payload  seq           // packets of all works that the line counts
	counted  seq           // of these, before highest
	held     int           // of these, in flight
	lineRoom int           // packets that the line admits from this QP now
	ticket   int64         // while the line has no room; 0: none
	waitsAt  time.Duration // since when

	pieces     pieces
	gap        gap // the last sequence error that was handled
	readGap    gap // the last missing responses that were requested
	outOfOrder responseMap
	window     window
	schedule   schedule
}

// maxPackets bounds the packets of one work, so that all numbers in flight are
// within half of the PSN space.
const maxPackets = 1 << 22

// ackEvery bounds the packets between two that request an acknowledgement.
const ackEvery = 16

// gap is a range of missing packets for which the requester went back, and
// when.
type gap struct {
	at, end seq
	when    time.Duration
}

func (q *requester) init(h half) {
	q.lineRoom = maxWindow // without a line
	q.half = h
	c, s := &q.cfg, startSeq(h.cfg.PSN)
	q.una, q.acked, q.next, q.skipTo, q.highest, q.last = s, s, s, s, s, s
	q.sends = newQueue[Work](c.SendDepth)
	q.pieces = newPieces(c)
	q.outOfOrder = newResponseMap(c)
	q.window = newWindow(c)
	q.schedule = schedule{timer: never, rnrUntil: never, lineAt: never}
}

// post appends a work. It returns false if the send queue is full.
func (q *requester) post(w *Work) bool {
	if q.sends.full() {
		return false
	}
	w.Status = OK
	w.length, w.got, w.piece, w.place = total(w.Segments), 0, 0, cursor{}
	w.packets = q.cfg.MTU.Packets(w.length)
	if w.length > wire.MaxMessage || w.packets > maxPackets || w.Op == Read && (q.cfg.Reads == 0 || q.cfg.Unreliable) || w.Op > Read {
		w.Status = LocalInvalid // it ends in order
		w.packets = 1
	}
	w.first, w.before, w.counts = q.last, q.payload, w.length > smallWork
	if w.counts {
		q.payload += seq(w.packets)
	}
	q.last = w.end()
	q.sends.post(w)
	return true
}

// end ends the oldest work.
func (q *requester) end(w *Work, s Status) {
	w.Status = s
	q.sends.done++
	q.cur = max(q.cur, q.sends.done)
}

// stop stops the timers and flushes the works when the QP breaks.
func (q *requester) stop() {
	q.disarm()
	q.flush()
	q.abandon()
}

// abandon takes the packets and the ticket of the QP off its line.
func (q *requester) abandon() {
	if q.cfg.Line == nil {
		return
	}
	q.cfg.Line.add(-q.held)
	q.held = 0
	q.releaseTicket()
}

// flush ends all works of a broken QP.
func (q *requester) flush() {
	q.sends.breaks()
	for w := q.sends.oldest(); w != nil; w = q.sends.oldest() {
		q.end(w, Flushed)
	}
}

// emit sends requests as the window allows and leaves room for reserve packets.
// It returns why the connection breaks, or OK.
func (q *requester) emit(b *Burst, reserve int, now time.Duration) Status {
	if q.rnrPending(now) {
		q.releaseTicket() // the peer may have no receive for long
		return OK
	}
	if q.schedule.probe.due && b.room() > reserve {
		q.emitProbe(b)
	}
	if q.cfg.Line == nil {
		return q.emitWorks(b, reserve, now)
	}
	q.account()
	q.lineRoom = q.cfg.Line.roomFor(q.ticket)
	status := q.emitWorks(b, reserve, now)
	q.account()
	if q.ticket != 0 && q.schedule.lineAt == never {
		q.releaseTicket() // it needs no room now
	}
	return status
}

// emitWorks sends the packets of the works.
func (q *requester) emitWorks(b *Burst, reserve int, now time.Duration) Status {
	for b.room() > reserve && q.cur < q.sends.posted {
		w := q.sends.at(q.cur)
		switch {
		case q.next >= w.end():
			q.cur++
		case q.skip(w):
		case w.Status != OK || !q.memory.Local(w.ID):
			if w != q.sends.oldest() {
				return OK // works complete in order
			}
			if cause := q.failLocal(w); cause != OK {
				return cause
			}
		case w.Op == Read:
			if !q.emitRead(b, w, now) {
				return OK
			}
		default:
			if !q.admits(1) || !q.fitsLine(w, 1, now) {
				return OK
			}
			q.emitPacket(b, w, now)
		}
	}
	return OK
}

// skip skips packets that need no retransmission after a loss.
func (q *requester) skip(w *Work) bool {
	to := q.skipTo
	if q.next < q.holeEnd {
		to = min(q.acked, q.holeEnd)
		if w.Op == Read {
			to = w.first + seq(w.got)
		}
	}
	if to <= q.next {
		return false
	}
	if w.Op != Read {
		q.next = min(to, w.end())
		return true
	}
	end := q.pieceEnd(w)
	q.next = min(to, end)
	if q.next == end && end > q.una && !q.pieces.full() {
		q.pieces.push(end) // it is still in flight
	}
	return true
}

// admits reports whether n more packets may be sent.
func (q *requester) admits(n int) bool {
	if q.cfg.Unreliable {
		return true
	}
	inFlight := int(q.next - q.una)
	if q.schedule.probing && inFlight > 0 {
		return false
	}
	return q.window.admits(inFlight, n)
}

// emitPacket sends the next packet of a Send or Write.
func (q *requester) emitPacket(b *Burst, w *Work, now time.Duration) {
	mtu := q.cfg.MTU.Bytes()
	i := int(q.next - w.first)
	n := min(w.length-i*mtu, mtu)
	last := i == w.packets-1
	h := q.start(b, packetOpcode(w, i == 0, last), q.next)
	if q.cfg.Unreliable {
		h.Opcode += wire.UCSendFirst - wire.RCSendFirst
	} else {
		h.AckRequest = last || q.wantsAck()
	}
	h.RETH = wire.RETH{Addr: w.Addr, Key: w.Key, Length: uint32(w.length)}
	h.Immediate = w.Immediate
	at := len(b.segments)
	w.place.seek(w.Segments, i*mtu)
	b.segments = w.place.gather(w.Segments, n, b.segments)
	b.add(h, at, n, w)
	q.sent(w, 1, now)
	if last && q.cfg.Unreliable {
		q.una, q.acked = q.next, q.next
		q.end(w, OK)
	}
}

// wantsAck reports whether a packet in the middle of a message requests an
// acknowledgement: at intervals, and when the window or the line is full,
// because a selective peer then gets no other reason to report what is missing.
func (q *requester) wantsAck() bool {
	if q.lineRoom <= 0 {
		return true
	}
	every := seq(max(1, min(ackEvery, q.window.size/4)))
	return q.next%every == 0 || int(q.next-q.una)+1 >= q.window.size || q.schedule.probing
}

// sent advances past n PSNs of one packet.
func (q *requester) sent(w *Work, n int, now time.Duration) {
	q.counters.Sent++
	if q.next < q.highest {
		q.counters.Retransmitted++
	} else if !q.cfg.Unreliable {
		q.schedule.sample(q.next, now)
	}
	q.next += seq(n)
	if q.next > q.highest {
		q.highest, q.counted = q.next, w.count(q.next)
	}
	if !q.cfg.Unreliable && q.schedule.timer == never {
		q.schedule.progressAt = now
		q.arm(now)
	}
}

// failLocal ends the oldest work, which cannot be executed: on RC it breaks the
// connection, on UC only the work fails.
func (q *requester) failLocal(w *Work) Status {
	status := LocalProtection
	if w.Status != OK {
		status = w.Status
	}
	q.end(w, status)
	if !q.cfg.Unreliable {
		return status
	}
	q.una, q.acked, q.next = w.end(), w.end(), w.end()
	q.highest = max(q.highest, q.next) // UC has no line
	return OK
}

// packetOpcodes are the opcodes of Sends and Writes on RC, a row for each kind:
// first, middle, last, last with immediate data, only, only with immediate
// data.
var packetOpcodes = [...][6]wire.Opcode{
	Send: {
		wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast,
		wire.RCSendLastImmediate, wire.RCSendOnly, wire.RCSendOnlyImmediate,
	},
	Write: {
		wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast,
		wire.RCWriteLastImmediate, wire.RCWriteOnly, wire.RCWriteOnlyImmediate,
	},
}

func packetOpcode(w *Work, first, last bool) wire.Opcode {
	i := 1
	switch {
	case first && last:
		i = 4
	case first:
		i = 0
	case last:
		i = 2
	}
	if last && w.HasImmediate {
		i++
	}
	return packetOpcodes[w.Op][i]
}

// fitsLine reports whether the line has room for the next packet of a work, or
// for the next piece of a Read. A retransmitted packet needs none: the
// line counts it until it is acknowledged.
func (q *requester) fitsLine(w *Work, n int, now time.Duration) bool {
	switch {
	case q.cfg.Line == nil || !w.counts || q.next < q.highest:
		return true
	case q.lineRoom > 0:
		q.lineRoom -= n
		q.releaseTicket()
		return true
	case q.ticket == 0:
		q.ticket, q.waitsAt = q.cfg.Line.acquireTicket(), now
		q.schedule.lineAt = q.cfg.Line.retry(q.ticket, q.waitsAt, now)
	case q.schedule.lineAt == never:
		q.schedule.lineAt = q.cfg.Line.retry(q.ticket, q.waitsAt, now)
	}
	return false
}

// releaseTicket ends the ticket of the QP, if it has one.
func (q *requester) releaseTicket() {
	if q.ticket != 0 {
		q.ticket, q.schedule.lineAt = 0, never
		q.cfg.Line.releaseTicket()
	}
}

// account tells the line how many packets are in flight. If the peer has not
// answered for long, what it was sent is on the line no more.
func (q *requester) account() {
	n := 0
	if w := q.sends.oldest(); w != nil {
		n = int(q.counted - min(q.counted, w.count(q.una)))
	}
	if q.schedule.backoff > 1 {
		n = 0
	}
	if n != q.held {
		q.cfg.Line.add(n - q.held)
		q.held = n
	}
}

// count returns the packets before s that the line counts; s belongs to the
// work.
func (w *Work) count(s seq) seq {
	if !w.counts {
		return w.before
	}
	return w.before + s - w.first
}
