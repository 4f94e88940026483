package rc

import "github.com/viablk/viablk/via/roce/wire"

// An expected packet takes these steps:
//
//	1 execute     checks the opcode against the message and the path MTU
//	2 checkRange  looks up the whole range of a Write or Read, at its first
//	              packet
//	3 scatter     executeSend copies the payload to the oldest receive, which the
//	              responder owns until it ends; executeWrite copies it to memory
//	              that it looks up for this packet alone
//	4 endMessage  raises the MSN and ends the receive, which the consumer owns
//	              again once it polls it

// message is a message that is being received.
type message struct {
	op      wire.Operation // OpNone between messages
	moved   int            // bytes so far
	length  int            // of a Write
	key     uint32
	addr    uint64
	refused bool // UC: the rest is dropped
}

// execute executes the expected packet and returns the answer to it. Only an
// ACK means that the packet changed something, except for the state of a broken
// QP.
func (q *responder) execute(p *wire.Packet) wire.Syndrome {
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
func (q *responder) executeSend(p *wire.Packet, starts bool) wire.Syndrome {
	r := q.receives.oldest()
	switch {
	case r == nil:
		return q.noReceive()
	case !q.memory.Local(r.ID):
		q.message = message{}
		q.end(r, LocalProtection)
		return wire.NAKRemoteOperational
	}
	if starts {
		q.message = message{op: wire.OpSend}
	}
	if q.message.moved+len(p.Payload) > r.capacity {
		r.Length = q.message.moved
		q.message = message{}
		q.end(r, TooLong)
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

// executeWrite copies a packet of a Write to its address. The first packet had
// the whole range checked; whether the memory still exists is checked for each
// packet.
func (q *responder) executeWrite(p *wire.Packet, starts bool) wire.Syndrome {
	flags, n := p.Opcode.Flags(), len(p.Payload)
	consumes, ends := flags&wire.Consumes != 0, flags&wire.End != 0
	if starts {
		if v := q.checkRange(p, q.cfg.AllowWrite, RemoteWrite); v != wire.ACK {
			q.reportRefusedWrite(flags)
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
			q.reportRefusedWrite(flags)
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

// checkRange validates the RETH of a request.
func (q *responder) checkRange(p *wire.Packet, allowed bool, a Access) wire.Syndrome {
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

// reportRefusedWrite reports a refused Write: by the receive that its immediate
// data would have consumed, or by an event. On UC this waits for the last
// packet, which says whether there is immediate data.
func (q *responder) reportRefusedWrite(flags wire.Flags) {
	r := q.receives.oldest()
	switch {
	case flags&wire.End == 0 && q.cfg.Unreliable:
	case flags&wire.Consumes == 0 || r == nil:
		q.event(WriteRefused)
	default:
		r.ByWrite = true
		q.end(r, Refused)
	}
}

// endMessage counts a complete message and completes its receive.
func (q *responder) endMessage(p *wire.Packet) {
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
	q.end(r, OK)
}

// noReceive returns the answer to a message that finds no receive.
func (q *responder) noReceive() wire.Syndrome {
	if q.cfg.WaitForReceive && !q.cfg.Unreliable {
		return wire.RNR(q.cfg.RNRDelay)
	}
	q.message = message{}
	q.event(EmptyQueue)
	return wire.NAKRemoteOperational
}

// nakCause returns why this end is broken after it sent a NAK.
func nakCause(v wire.Syndrome, empty bool) Status {
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
