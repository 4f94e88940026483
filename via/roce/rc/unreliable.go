package rc

import "github.com/viablk/viablk/via/roce/wire"

// receiveUnreliable takes a request of an unreliable connection. Nothing is
// answered: what is missing is lost, and takes along the rest of its message;
// what is late is dropped. An error costs the message it is about, no more.
func (q *QP) receiveUnreliable(p *wire.Packet, r wire.Refusal) {
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
		q.drop(p)
	case flags&wire.Start == 0 && q.message.op == wire.OpNone:
		q.counters.Ignored++ // its message has lost its start
	case q.execute(p) != wire.ACK:
		q.refuse(p)
	}
}

// abort gives up a message that has lost its end.
func (q *QP) abort() {
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
		q.endReceive(r, Partial)
	}
}

// refuse ends a message that cannot be received; what is left of it is dropped.
// Execute has told this end of it, unless the message goes on: then it breaks a
// rule, and is given up, or is a Write whose last packet decides who hears of it.
func (q *QP) refuse(p *wire.Packet) {
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

// drop passes over a packet of a message that was refused.
func (q *QP) drop(p *wire.Packet) {
	flags, op := p.Opcode.Flags(), p.Opcode.Operation()
	if flags&wire.End == 0 {
		return
	}
	q.counters.Dropped++
	q.message = message{}
	if op == wire.OpWrite {
		q.refuseWrite(flags)
	}
}
