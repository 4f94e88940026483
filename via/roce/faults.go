package roce

import (
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// A fabric under test strikes the packets of works between the queue pair and the
// lane. What is dropped, corrupt or cut short is so each time that it is sent
// again: else reliable connections would repair it, as they do on any network.
//
//	drop        all packets of the work
//	duplicate   each packet is sent twice, the first time
//	reorder     behind the packets of the next work, or as they were if none follows
//	corrupt     a bit of the last packet, or of each request of a Read
//	truncate    the same packet, half of it
//	cut         the second half of the packets, or what asks for a Read, and the
//	            connection
type faultyWire struct {
	link *link
	icrc wire.ICRC
	late []rc.Packet // of a work that is to come behind the next
	of   *sendSlot   // that work
	cut  bool        // the connection is to be cut when the packets are sent
}

// struck is what a fault has to know of a work.
type struck struct {
	asked bool
	fault via.Fault
	first wire.PSN // of its first packet
	sent  int      // packets that were sent once
}

// strike does to packets what the faults of their works say, and adds what is
// left of them to what is sent.
func (f *faultyWire) strike(packets []rc.Packet, spans []port.Span) []port.Span {
	var out []rc.Packet
	for i := range packets {
		p := packets[i]
		p.Joins = false
		if p.Work == nil {
			out = append(out, p)
			continue
		}
		out = f.befall(f.slotOf(p.Work), p, out)
	}
	out = append(out, f.late...)
	f.late, f.of = nil, nil
	if len(out) == 0 {
		return spans
	}
	return append(spans, port.Span{To: f.link.peer, Packets: out})
}

func (f *faultyWire) slotOf(w *rc.Work) *sendSlot { return f.link.sends.slots.at(slotOf(w.ID)) }

// befall adds what becomes of a packet.
func (f *faultyWire) befall(s *sendSlot, p rc.Packet, out []rc.Packet) []rc.Packet {
	var h wire.BTH
	h.Decode(p.Header)
	if !s.struck.asked {
		s.struck = struck{asked: true, fault: f.link.cfg.Faults.Next(s.work), first: h.PSN}
	}
	at := h.PSN.Sub(s.struck.first)
	isNew := at >= s.struck.sent
	s.struck.sent = max(s.struck.sent, at+1)
	ends := h.Opcode.Flags()&wire.End != 0
	switch fault := s.struck.fault; {
	case f.cut, fault == via.FaultDrop:
		return out
	case fault == via.FaultCut && (s.Op == rc.Read || 2*at >= f.link.mtu.Packets(int(s.work.Length))-1):
		f.cut = true
		return out
	case fault == via.FaultCorrupt && ends, fault == via.FaultTruncate && ends:
		return append(out, f.spoil(&p, fault == via.FaultTruncate))
	case fault == via.FaultDuplicate && isNew:
		return append(out, p, p)
	case fault == via.FaultReorder && isNew:
		f.late, f.of = append(f.late, p), s
		return out
	}
	out = append(out, p)
	if ends && len(f.late) > 0 && f.of != s {
		out = append(out, f.late...)
		f.late, f.of = nil, nil
	}
	return out
}

// spoil returns a packet with a bit flipped behind its sender's back, or half of
// it: an odd number of bytes, as no packet has.
func (f *faultyWire) spoil(p *rc.Packet, truncate bool) rc.Packet {
	b := append([]byte(nil), p.Header...)
	for _, s := range p.Payload {
		b = append(b, s...)
	}
	header, end := len(p.Header), len(b)
	b = append(b, p.Trailer...)
	f.icrc.Seal(b[end:], wire.Identification{}, b[:header], b[header:end])
	if truncate {
		b = b[:len(b)/2|1]
	} else {
		b[end-1] ^= 0x10
		if header == end {
			b[end-1] ^= 0x10 // a header means something
			b[end] ^= 0x10
		}
	}
	return rc.Packet{Header: b, Size: len(b), Work: p.Work, Sealed: true}
}

// sever cuts connections in the middle of a work, once what comes before the cut
// is sent.
func (l *lane) sever(now time.Duration) {
	for _, k := range l.started {
		if k.faulty == nil || !k.faulty.cut || k.qp.Cause() != rc.OK {
			continue
		}
		k.takePosts()
		k.qp.Break()
		l.touch(k)
		k.endpoint.consult(func(m *cm.Manager, now time.Duration) {
			if c := k.endpoint.conversations[k.id]; c != nil {
				c.ending = true
			}
			m.Disconnect(k.id, now)
		})
	}
	l.send(now)
}
