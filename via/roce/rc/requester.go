package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// maxPackets bounds the packets of one work, so that all numbers under way are
// in one half of the PSNs.
const maxPackets = 1 << 22

// ackEvery is how many packets go at most without asking for an acknowledgement.
const ackEvery = 16

// requester is the half of a QP that sends requests. Its numbers stand in this
// order, acked and next but for a while after a loss:
//
//	una ≤ acked ≤ next ≤ highest ≤ last
type requester struct {
	una     seq    // the first packet not settled: not acknowledged, or a response missing
	acked   seq    // the peer has carried out all before it
	next    seq    // the next packet to send
	resend  seq    // what is before it, and not in the hole, is not sent again
	holeEnd seq    // next to holeEnd is missing, if that is anything
	highest seq    // behind the last packet that was ever sent
	last    seq    // behind the last packet of the last work
	cur     uint64 // the work of next, in sends

	pieces   pieces
	gap      gap // the sequence error that was answered last
	readGap  gap // the missing responses that were asked for last
	placed   placed
	window   window
	schedule schedule
}

// gap are missing packets for which the requester has gone back, and when.
type gap struct {
	at, end seq
	when    time.Duration
}

func (r *requester) init(c *Config) {
	s := startSeq(c.PSN)
	r.una, r.acked, r.next, r.resend, r.highest, r.last = s, s, s, s, s, s
	r.pieces = newPieces(c)
	r.placed = newPlaced(c)
	r.window = newWindow(c)
	r.schedule = schedule{timer: never, hold: never}
}

// emitRequests sends what the window allows, and leaves room for some packets.
func (q *QP) emitRequests(b *Burst, leave int, now time.Duration) {
	if q.held(now) {
		return
	}
	for b.room() > leave && q.cause == OK && q.cur < q.sends.posted {
		w := q.sends.at(q.cur)
		switch {
		case q.next >= w.end():
			q.cur++
		case q.skip(w):
		case w.Status != OK || !q.memory.Local(w.ID):
			if !q.refuseLocal(w) {
				return
			}
		case w.Op == Read:
			if !q.emitRead(b, w, now) {
				return
			}
		default:
			if !q.admits(1) {
				return
			}
			q.emitPart(b, w, now)
		}
	}
}

// skip passes over what need not be sent again, after a loss.
func (q *QP) skip(w *Work) bool {
	to := q.resend
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
		q.pieces.push(end) // it is still under way
	}
	return true
}

// admits reports whether n more packets may go.
func (q *QP) admits(n int) bool {
	if q.cfg.Unreliable {
		return true
	}
	underway := int(q.next - q.una)
	if q.schedule.probing && underway > 0 {
		return false
	}
	return q.window.admits(underway, n)
}

// emitPart sends the next packet of a Send or Write.
func (q *QP) emitPart(b *Burst, w *Work, now time.Duration) {
	mtu := q.cfg.MTU.Bytes()
	i := int(q.next - w.first)
	n := min(w.length-i*mtu, mtu)
	last := i == w.packets-1
	h := q.start(partOpcode(w, i == 0, last))
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
	q.sent(1, now)
	if last && q.cfg.Unreliable {
		q.una, q.acked = q.next, q.next
		q.endWork(w, OK)
	}
}

// wantsAck reports whether the packet asks for an acknowledgement although its
// message goes on: now and then, and when the window is full, for then nothing
// else will make a selective peer say again what it misses.
func (q *QP) wantsAck() bool {
	every := seq(max(1, min(ackEvery, q.window.size/4)))
	return q.next%every == 0 || int(q.next-q.una)+1 >= q.window.size || q.schedule.probing
}

// start returns a header for the next packet.
func (q *QP) start(op wire.Opcode) *wire.Packet {
	h := &q.header
	h.BTH = wire.BTH{Opcode: op, PKey: q.cfg.PKey, DestQP: q.cfg.PeerQP, PSN: q.next.psn()}
	return h
}

// sent moves past n PSNs that were sent in one packet.
func (q *QP) sent(n int, now time.Duration) {
	q.counters.Sent++
	if q.next < q.highest {
		q.counters.Retransmitted++
	} else if !q.cfg.Unreliable {
		q.schedule.sample(q.next, now)
	}
	q.next += seq(n)
	q.highest = max(q.highest, q.next)
	if !q.cfg.Unreliable && q.schedule.timer == never {
		q.schedule.progressAt = now
		q.arm(now)
	}
}

// refuseLocal ends a work that cannot be carried out: on RC with the connection,
// once all before it has ended, on UC alone. It returns false if it has to wait.
func (q *QP) refuseLocal(w *Work) bool {
	status := LocalProtection
	if w.Status != OK {
		status = w.Status
	}
	if w != q.sends.oldest() {
		return false
	}
	q.endWork(w, status)
	if !q.cfg.Unreliable {
		q.fail(status)
		return false
	}
	q.una, q.acked, q.next = w.end(), w.end(), w.end()
	q.highest = max(q.highest, q.next)
	return true
}

// partOpcodes are the opcodes of Sends and Writes on RC, in rows of their kind:
// first, middle, last, last with immediate data, only, only with immediate data.
var partOpcodes = [...][6]wire.Opcode{
	Send: {
		wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast,
		wire.RCSendLastImmediate, wire.RCSendOnly, wire.RCSendOnlyImmediate,
	},
	Write: {
		wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast,
		wire.RCWriteLastImmediate, wire.RCWriteOnly, wire.RCWriteOnlyImmediate,
	},
}

func partOpcode(w *Work, first, last bool) wire.Opcode {
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
	return partOpcodes[w.Op][i]
}
