package rc

import "github.com/viablk/viablk/via/roce/wire"

// damage is the packet whose turn it was and that arrived damaged.
type damage struct {
	at     seq // 0 is none
	opcode wire.Opcode
	cut    bool
}

// Damaged tells of a packet that arrived for the QP from its peer with a wrong
// ICRC, or cut short. It is lost, like one that did not arrive: on RC it comes
// again. What it seems to be serves only to give the loss its name, where the
// message cannot be had any more, and only if it is the packet that is expected.
func (q *QP) Damaged(h *wire.BTH, cut bool) {
	q.counters.Damaged++
	o := h.Opcode
	inside := q.message.op != wire.OpNone
	switch {
	case q.cause != OK, o.Class() != q.class(), o.Flags()&wire.Response != 0, q.expected.psn() != h.PSN:
		return
	case inside && !q.cfg.Unreliable && (o.Flags()&wire.Start != 0 || o.Operation() != q.message.op):
		return // it would be refused
	}
	q.damage = damage{at: q.expected, opcode: o, cut: cut}
	if q.cfg.Unreliable && o.Flags()&wire.End != 0 {
		q.loseDamaged()
	}
}

// loseDamaged gives up the message whose last packet is damaged, on UC.
func (q *QP) loseDamaged() {
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
		q.refuseWrite(q.damage.opcode.Flags())
		return
	}
	q.tellDamage(m.moved)
}

// tellDamage tells this end of the message of which a packet was damaged: by the
// receive that it would complete, or by an event.
func (q *QP) tellDamage(moved int) {
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
			q.endReceive(r, status)
		}
	case isWrite:
		q.event(event)
	}
}

// unfinished tells this end of the message that the peer will not finish, when
// the QP breaks.
func (q *QP) unfinished() {
	m := q.message
	q.message = message{}
	switch r := q.receives.oldest(); {
	case q.damage.at == q.expected && !q.cfg.Unreliable:
		q.tellDamage(m.moved)
	case m.op == wire.OpSend && r != nil && !m.refused:
		r.Length = m.moved
		q.endReceive(r, Partial)
	case m.op == wire.OpWrite && !q.cfg.Unreliable:
		q.event(WriteAborted)
	}
}
