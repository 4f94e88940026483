package loopback

import (
	"errors"

	"github.com/viablk/viablk/via"
)

// problem is an error that a message meets where it arrives. The receive that
// it consumes says so; an error that consumes none is an event. The answer is
// what the sender's descriptor says, where it waits for one.
type problem struct {
	receive via.Status
	event   via.AsyncCode
	answer  via.Status
	cause   error
}

var (
	noReceive = problem{0, via.AsyncRecvQueueEmpty, via.StatusRemoteDescError, errors.New("a message met no receive")}
	tooLong   = problem{via.StatusLengthError, lost, via.StatusRemoteDescError, errors.New("a message is longer than its receive")}
	withdrawn = problem{via.StatusProtectionError, lost, via.StatusRemoteDescError, errors.New("a receive's memory is withdrawn")}
	truncated = problem{via.StatusPartialError, via.AsyncRdmaWriteAbort, via.StatusTransportError, errors.New("a message is cut off")}
	corrupt   = problem{via.StatusTransportError, via.AsyncRdmaWriteData, via.StatusTransportError, errors.New("a message is corrupt")}
	noWrite   = problem{via.StatusRdmaProtError, via.AsyncRdmaWriteProt, via.StatusRdmaProtError, errors.New("an rdma write is refused")}
	noRead    = problem{0, via.AsyncRdmaReadProt, via.StatusRdmaProtError, errors.New("an rdma read is refused")}
)

// arrive takes a message or a request off the wire. Access is held.
func (l *link) arrive(u *unit) {
	switch {
	case l.conn.broken:
	case u.seq <= l.got:
		l.stats.Dropped++ // it was here, or is too late
	case u.seq != l.got+1 && !l.unreliable():
		l.conn.breakFrom(l, lost, errLost)
	default:
		l.got = u.seq
		if u.op == via.OpRdmaRead {
			l.fetch(u)
		} else {
			l.receiveUnit(u)
		}
	}
}

// receiveUnit carries out a Send or an RDMA Write.
func (l *link) receiveUnit(u *unit) {
	var r *via.Work
	if u.op == via.OpSend || u.hasImmediate {
		if r = l.receives.pop(); r == nil {
			l.meet(u, nil, &noReceive)
			return
		}
	}
	if p := l.place(u, r); p != nil {
		l.meet(u, r, p)
		return
	}
	if r != nil {
		l.stats.Receives++
		l.done(l.recv, r, arrival(u, r), u.length)
	}
	l.answer(u, 0)
}

// place copies a message to where it belongs, if nothing is wrong.
func (l *link) place(u *unit, r *via.Work) *problem {
	b, damage := u.payload()
	if damage != nil {
		return damage
	}
	if u.op == via.OpRdmaWrite {
		// A write of no bytes touches nothing: only the connection matters.
		dst, ok := l.adapter.remote(l, u)
		if !ok {
			return &noWrite
		}
		copy(dst, b)
	} else {
		switch {
		case r.Length < u.length:
			return &tooLong
		case !l.allowed(r):
			return &withdrawn
		}
		scatter(r.Segments, b)
	}
	l.stats.BytesCopied += uint64(len(b))
	return nil
}

// arrival returns what a consumed receive says beside errors.
func arrival(u *unit, r *via.Work) via.Status {
	var s via.Status
	if u.op == via.OpRdmaWrite {
		s = via.StatusOpRemoteWrite
	}
	if u.hasImmediate {
		s, r.Immediate = s|via.StatusImmediate, u.immediate
	}
	return s
}

// fetch carries out the request of an RDMA Read.
func (l *link) fetch(u *unit) {
	src, ok := l.adapter.remote(l, u)
	if !ok {
		l.meet(u, nil, &noRead)
		return
	}
	copy(l.out.room(len(src)), src)
	l.stats.BytesCopied += uint64(len(src))
	l.reply(unit{answer: true, seq: u.seq, length: u.length}, len(src))
}

// meet ends a message that met a problem, and a reliable connection with it.
func (l *link) meet(u *unit, r *via.Work, p *problem) {
	event := p.event
	switch {
	case r != nil:
		l.done(l.recv, r, p.receive|arrival(u, r)&via.StatusOpMask, 0)
		event = lost // the receive says why
	case l.unreliable():
		l.stats.Dropped++
		l.report(event, false, p.cause)
	}
	l.answer(u, p.answer)
	if !l.unreliable() {
		l.conn.breakFrom(l, event, p.cause)
	}
}

// answer tells the peer what became of a unit, if it waits for that.
func (l *link) answer(u *unit, s via.Status) {
	if u.op == via.OpRdmaRead || l.cfg.Reliability == via.ReliableReception {
		l.reply(unit{answer: true, seq: u.seq, status: s}, 0)
	}
}

// reply sends an answer with a payload of so many bytes.
func (l *link) reply(u unit, size int) {
	l.out.put(u, size)
	l.deliver()
}
