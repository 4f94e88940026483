package rc

import "github.com/viablk/viablk/via/roce/wire"

// maxReadPackets bounds one read request of the peer.
const maxReadPackets = maxPackets

// responder is the half of a QP that carries out requests.
type responder struct {
	expected  seq
	msn       wire.MSN
	message   message
	outOfStep bool // a NAK is out; what comes behind the gap is dropped
	furthest  seq  // the latest packet from behind the gap
	kept      ahead
	damage    damage

	answer     answer
	responses  reads // to be sent
	remembered reads // for requests that come again
}

// message is one that is being received.
type message struct {
	op      wire.Operation // OpNone between messages
	moved   int            // bytes so far
	length  int            // of a Write
	key     uint32
	addr    uint64
	refused bool // UC: the rest is dropped
}

// answer is an acknowledgement or refusal that waits to be sent.
type answer struct {
	waits    bool
	syndrome wire.Syndrome
	at       seq
}

func (r *responder) init(c *Config) {
	r.expected = startSeq(c.PeerPSN)
	r.responses = newReads(2 * c.PeerReads)
	r.remembered = newReads(c.PeerReads)
	r.kept = newAhead(c)
}

// receiveRequest takes a request of a reliable connection.
func (q *QP) receiveRequest(p *wire.Packet, r wire.Refusal) {
	s := q.expected.near(p.PSN)
	switch {
	case s > q.expected:
		q.behindGap(p, r, s)
		return
	case s < q.expected:
		q.duplicate(p, s, r)
		return
	}
	q.outOfStep = false
	q.carryOut(p, r)
	for k := q.kept.next(q.expected); k != nil && !q.outOfStep && q.cause == OK; k = q.kept.next(q.expected) {
		q.carryOut(&k.packet, k.refusal)
	}
	if q.kept.count > 0 && !q.outOfStep {
		q.missing(q.furthest)
	}
}

// carryOut carries out the request whose turn it is.
func (q *QP) carryOut(p *wire.Packet, r wire.Refusal) {
	s := q.expected
	q.damage = damage{}
	verdict := wire.NAKInvalidRequest
	if r == wire.Accepted {
		verdict = q.execute(p)
	}
	switch verdict.Kind() {
	case wire.KindACK:
		if p.Opcode != wire.RCReadRequest {
			q.expected++
			if p.AckRequest {
				q.reply(wire.ACK, s)
			}
		}
		q.kept.release(s, int(q.expected-s))
	case wire.KindRNR:
		q.counters.RNRsSent++
		q.reply(verdict, s)
		q.outOfStep, q.furthest = true, s
		q.kept.release(s, 1)
	default:
		q.counters.NAKsSent++
		q.reply(verdict, s)
		q.fail(refusalCause(verdict, q.empty()))
	}
}

// behindGap takes a packet before which others are missing. The peer hears of it
// once, and again when it has gone back and the packet is still missing, which
// shows in numbers that do not grow. A peer that is selective does not go back;
// it hears of it whenever it asks.
func (q *QP) behindGap(p *wire.Packet, r wire.Refusal, s seq) {
	q.counters.OutOfSequence++
	if q.cfg.Stash != nil {
		q.kept.keep(p, r, s, q.expected)
	}
	if !q.outOfStep || s <= q.furthest || p.AckRequest && q.cfg.Selective {
		q.missing(s)
	}
	q.furthest = s
}

// missing asks for the packet whose turn it is, when another one came.
func (q *QP) missing(s seq) {
	q.counters.NAKsSent++
	q.reply(wire.NAKSequence, q.expected)
	q.outOfStep, q.furthest = true, s
}

// duplicate takes a request that was carried out: its answer was lost, or is
// late. Reads are answered again; of all others the peer learns how far this end
// is.
func (q *QP) duplicate(p *wire.Packet, s seq, r wire.Refusal) {
	q.countDuplicate(p)
	switch {
	case r != wire.Accepted:
	case p.Opcode == wire.RCReadRequest:
		q.readDuplicate(p, s)
	case !q.answer.waits:
		q.reply(wire.ACK, q.expected-1)
	}
}

// countDuplicate counts a request that arrived again.
func (q *QP) countDuplicate(p *wire.Packet) {
	q.counters.Duplicates++
	if p.Opcode.Operation() == wire.OpSend && p.Opcode.Flags()&wire.End != 0 {
		q.counters.Repeated++
	}
}

// reply sets what the peer hears next. An ACK covers every earlier one.
func (q *QP) reply(s wire.Syndrome, at seq) { q.answer = answer{true, s, at} }

// repeatRefusal sends the refusal that broke the connection again, if the packet
// that was refused comes again: the first refusal was lost.
func (q *QP) repeatRefusal(p *wire.Packet) {
	a := &q.answer
	if a.syndrome.Kind() == wire.KindNAK && a.syndrome != wire.NAKSequence && p.PSN == a.at.psn() && p.Opcode.Flags()&wire.Response == 0 {
		a.waits = true
	}
}

// execute carries out the packet whose turn it is, and returns what the peer is
// to hear of it. Only with an ACK anything has changed, but for what the verdict
// breaks.
func (q *QP) execute(p *wire.Packet) wire.Syndrome {
	op, starts := p.Opcode.Operation(), p.Opcode.Flags()&wire.Start != 0
	inside := q.message.op != wire.OpNone
	if starts == inside || inside && op != q.message.op || !p.FitsMTU(q.cfg.MTU) {
		return wire.NAKInvalidRequest
	}
	switch {
	case op == wire.OpSend && p.Opcode.Extensions()&wire.ExtIETH == 0:
		return q.executeSend(p, starts)
	case op == wire.OpWrite:
		return q.executeWrite(p, starts)
	case op == wire.OpReadRequest:
		return q.executeRead(p)
	}
	return wire.NAKInvalidRequest
}

// executeSend copies a packet of a Send into the oldest receive.
func (q *QP) executeSend(p *wire.Packet, starts bool) wire.Syndrome {
	r := q.receives.oldest()
	switch {
	case r == nil:
		return q.noReceive()
	case !q.memory.Local(r.ID):
		q.message = message{}
		q.endReceive(r, LocalProtection)
		return wire.NAKRemoteOperational
	}
	if starts {
		q.message = message{op: wire.OpSend}
	}
	if q.message.moved+len(p.Payload) > r.capacity {
		r.Length = q.message.moved
		q.message = message{}
		q.endReceive(r, TooLong)
		return wire.NAKInvalidRequest
	}
	r.place.scatter(r.Segments, p.Payload)
	q.counters.Copied += uint64(len(p.Payload))
	q.message.moved += len(p.Payload)
	if p.Opcode.Flags()&wire.End != 0 {
		q.endMessage(p)
	}
	return wire.ACK
}

// executeWrite copies a packet of a Write to where it belongs. The range was
// checked as a whole with the first packet; that the memory is still there is
// asked each time.
func (q *QP) executeWrite(p *wire.Packet, starts bool) wire.Syndrome {
	flags, n := p.Opcode.Flags(), len(p.Payload)
	consumes, ends := flags&wire.Consumes != 0, flags&wire.End != 0
	if starts {
		if v := q.checkRange(p, q.cfg.AllowWrite, RemoteWrite); v != wire.ACK {
			q.refuseWrite(flags)
			return v
		}
	}
	if consumes && q.receives.oldest() == nil {
		return q.noReceive()
	}
	if starts {
		q.message = message{op: wire.OpWrite, length: int(p.RETH.Length), key: p.RETH.Key, addr: p.RETH.Addr}
	}
	m := &q.message
	if left := m.length - m.moved - n; left < 0 || ends != (left == 0) {
		return wire.NAKInvalidRequest
	}
	if n > 0 {
		b := q.memory.Remote(m.key, m.addr+uint64(m.moved), n, RemoteWrite)
		if b == nil {
			q.message = message{}
			q.refuseWrite(flags)
			return wire.NAKRemoteAccess
		}
		m.moved += copy(b[:n], p.Payload)
		q.counters.Copied += uint64(n)
	}
	if ends {
		q.endMessage(p)
	}
	return wire.ACK
}

// checkRange judges the RETH of a request.
func (q *QP) checkRange(p *wire.Packet, allowed bool, a Access) wire.Syndrome {
	h := &p.RETH
	switch {
	case !allowed:
		return wire.NAKInvalidRequest
	case h.Length == 0:
		return wire.ACK
	case h.Addr+uint64(h.Length) < h.Addr, q.memory.Remote(h.Key, h.Addr, int(h.Length), a) == nil:
		return wire.NAKRemoteAccess
	}
	return wire.ACK
}

// refuseWrite tells this end that a Write was refused: by the receive that its
// immediate data would have taken, or by an event. On UC that has to wait for
// the last packet, which says whether there are such data.
func (q *QP) refuseWrite(flags wire.Flags) {
	r := q.receives.oldest()
	switch {
	case flags&wire.End == 0 && q.cfg.Unreliable:
	case flags&wire.Consumes == 0 || r == nil:
		q.event(WriteRefused)
	default:
		r.ByWrite = true
		q.endReceive(r, Refused)
	}
}

// endMessage counts a message that is complete, and completes its receive.
func (q *QP) endMessage(p *wire.Packet) {
	q.msn = q.msn.Add(1)
	m := q.message
	q.message = message{}
	if p.Opcode.Flags()&wire.Completes == 0 {
		return
	}
	r := q.receives.oldest()
	r.Length = m.moved
	r.ByWrite = m.op == wire.OpWrite
	if p.Opcode.Extensions()&wire.ExtImmDt != 0 {
		r.HasImmediate, r.Immediate = true, p.Immediate
	}
	q.endReceive(r, OK)
}

// noReceive is what the peer hears when its message finds no receive.
func (q *QP) noReceive() wire.Syndrome {
	if q.cfg.WaitForReceive && !q.cfg.Unreliable {
		return wire.RNR(q.cfg.RNRDelay)
	}
	q.message = message{}
	q.event(EmptyQueue)
	return wire.NAKRemoteOperational
}

func (q *QP) empty() bool { return q.receives.oldest() == nil }

// refusalCause is why this end is broken after it sent a NAK.
func refusalCause(v wire.Syndrome, empty bool) Status {
	switch {
	case v == wire.NAKRemoteAccess:
		return BadAccess
	case v == wire.NAKRemoteOperational && empty:
		return NoReceive
	case v == wire.NAKRemoteOperational:
		return LocalProtection
	}
	return BadRequest
}
