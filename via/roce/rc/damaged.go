package rc

import "github.com/viablk/viablk/via/roce/wire"

// A damaged packet takes these steps:
//
//	1 receiveDamaged    keeps its headers, if it is the expected one
//	2 executeNext       forgets them, once the peer has retransmitted it
//	3 reportUnfinished  names the loss by them, if the connection breaks before
//	  discardDamaged    names it at once, on UC

// damage is the expected packet, if it arrived damaged.
type damage struct {
	at     seq // 0 is none
	opcode wire.Opcode
	cut    bool
}

// receiveDamaged keeps the headers of a damaged request, if it is the expected
// one. On UC it aborts the message if its last packet is damaged.
func (q *responder) receiveDamaged(h *wire.BTH, cut bool) {
	o := h.Opcode
	inside := q.message.op != wire.OpNone
	switch {
	case q.expected.psn() != h.PSN:
		return
	case inside && !q.cfg.Unreliable && (o.Flags()&wire.Start != 0 || o.Operation() != q.message.op):
		return // execute would refuse it
	}
	q.damage = damage{at: q.expected, opcode: o, cut: cut}
	if q.cfg.Unreliable && o.Flags()&wire.End != 0 {
		q.discardDamaged()
	}
}

// discardDamaged aborts the message whose last packet is damaged, on UC.
func (q *responder) discardDamaged() {
	starts := q.damage.opcode.Flags()&wire.Start != 0
	if starts {
		q.abort() // what is before it has no end
	}
	m := q.message
	q.message = message{}
	q.expected++
	if !starts && m.op == wire.OpNone {
		return // its message has lost its start
	}
	q.counters.Dropped++
	if m.refused {
		q.reportRefusedWrite(q.damage.opcode.Flags())
		return
	}
	q.reportDamage(m.moved)
}

// reportDamage reports a damaged message: by the receive that it would
// complete, or by an event.
func (q *responder) reportDamage(moved int) {
	d := q.damage
	q.damage = damage{}
	status, event := Damaged, WriteDamaged
	if d.cut {
		status, event = Partial, WriteAborted
	}
	isWrite := d.opcode.Operation() == wire.OpWrite
	switch r := q.receives.oldest(); {
	case d.opcode.Operation() == wire.OpSend || d.opcode.Flags()&wire.Consumes != 0:
		if r != nil {
			r.Length, r.ByWrite = moved, isWrite
			q.end(r, status)
		}
	case isWrite:
		q.event(event)
	}
}

// reportUnfinished reports the unfinished message of the peer when the QP
// breaks.
func (q *responder) reportUnfinished() {
	m := q.message
	q.message = message{}
	switch r := q.receives.oldest(); {
	case q.damage.at == q.expected && !q.cfg.Unreliable:
		q.reportDamage(m.moved)
	case m.op == wire.OpSend && r != nil && !m.refused:
		r.Length = m.moved
		q.end(r, Partial)
	case m.op == wire.OpWrite && !q.cfg.Unreliable:
		q.event(WriteAborted)
	}
}
