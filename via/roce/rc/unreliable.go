package rc

import "github.com/viablk/viablk/via/roce/wire"

// receiveUnreliable handles a request of an unreliable connection. It sends no
// answer: a missing packet loses the rest of its message, a late one is
// dropped. An error costs only its message. A packet takes these steps:
//
//	1 abort            ends the message before a gap, or before a new message
//	2 execute          copies the payload, as on a reliable connection
//	3 refuse, discard  drop the rest of a message that execute refused
func (q *responder) receiveUnreliable(p *wire.Packet, r wire.Refusal) {
	s := q.expected.near(p.PSN)
	if s < q.expected {
		q.countDuplicate(p)
		return
	}
	flags := p.Opcode.Flags()
	if s > q.expected {
		q.counters.OutOfSequence++
		q.abort()
	} else if flags&wire.Start != 0 || p.Opcode.Operation() != q.message.op {
		q.abort()
	}
	q.expected = s + 1
	switch {
	case r != wire.Accepted:
		q.abort()
	case q.message.refused:
		q.discard(p)
	case flags&wire.Start == 0 && q.message.op == wire.OpNone:
		q.counters.Ignored++ // its message has lost its start
	case q.execute(p) != wire.ACK:
		q.refuse(p)
	}
}

// abort ends a message whose end is lost.
func (q *responder) abort() {
	m := q.message
	q.message = message{}
	if m.op == wire.OpNone {
		return
	}
	q.counters.Dropped++
	switch r := q.receives.oldest(); {
	case m.refused:
		if m.op == wire.OpWrite {
			q.event(WriteRefused)
		}
	case m.op == wire.OpWrite:
		q.event(WriteAborted)
	case r != nil:
		r.Length = m.moved
		q.end(r, Partial)
	}
}

// refuse ends a message that cannot be received and drops the rest of it.
// Execute has reported it, unless the message goes on: then it breaks a rule
// and is aborted, or is a Write whose last packet decides how to report it.
func (q *responder) refuse(p *wire.Packet) {
	if q.message.op != wire.OpNone {
		q.abort()
		return
	}
	if p.Opcode.Flags()&wire.End != 0 {
		q.counters.Dropped++
		return
	}
	q.message = message{op: p.Opcode.Operation(), refused: true}
}

// discard drops a packet of a refused message.
func (q *responder) discard(p *wire.Packet) {
	flags, op := p.Opcode.Flags(), p.Opcode.Operation()
	if flags&wire.End == 0 {
		return
	}
	q.counters.Dropped++
	q.message = message{}
	if op == wire.OpWrite {
		q.reportRefusedWrite(flags)
	}
}
