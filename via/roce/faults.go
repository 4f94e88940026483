package roce

import (
	"bytes"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// faultInjector applies the faults of works to their packets, between the queue
// pair and the shard. It drops, corrupts or truncates each retransmission too,
// or a reliable connection would repair the fault as on any network.
//
//	drop        all packets of the work
//	duplicate   the first transmission of each packet is sent twice
//	reorder     the packets follow those of the next work, if there is one
//	corrupt     flips a bit of the last packet, or of each request of a Read
//	truncate    sends half of the same packet
//	cut         drops the second half of the packets, or the Read request, and
//	            disconnects
type faultInjector struct {
	transport *transport
	icrc      wire.ICRC
	delayed   []rc.Packet // packets to send after those of the next work
	delayedOf *sendEntry  // the work of these packets
	cut       bool        // disconnect once the packets are sent
}

// faultState is the state of a fault of one work.
type faultState struct {
	decided bool
	fault   via.Fault
	first   wire.PSN // PSN of its first packet
	sent    int      // packets transmitted at least once
}

// apply applies the faults of the works to their packets, and appends the
// resulting packets to spans.
func (f *faultInjector) apply(packets []rc.Packet, spans []port.Span) []port.Span {
	var out []rc.Packet
	for i := range packets {
		p := packets[i]
		p.Joins = false
		if p.Work == nil {
			out = append(out, p)
			continue
		}
		out = f.applyTo(f.entryOf(p.Work), p, out)
	}
	out = append(out, f.delayed...)
	f.delayed, f.delayedOf = nil, nil
	if len(out) == 0 {
		return spans
	}
	return append(spans, port.Span{To: f.transport.route.to, Packets: out})
}

func (f *faultInjector) entryOf(w *rc.Work) *sendEntry {
	return f.transport.sends.at(entryIndex(w.ID))
}

// applyTo appends the packets that result from one packet.
func (f *faultInjector) applyTo(s *sendEntry, p rc.Packet, out []rc.Packet) []rc.Packet {
	var h wire.BTH
	h.Decode(p.Header)
	if !s.fault.decided {
		s.fault = faultState{decided: true, fault: f.transport.link.cfg.Faults.Next(s.work), first: h.PSN}
	}
	at := h.PSN.Sub(s.fault.first)
	isNew := at >= s.fault.sent
	s.fault.sent = max(s.fault.sent, at+1)
	ends := h.Opcode.Flags()&wire.End != 0
	switch fault := s.fault.fault; {
	case f.cut, fault == via.FaultDrop:
		return out
	case fault == via.FaultCut && (s.Op == rc.Read || 2*at >= f.transport.route.mtu.Packets(int(s.work.Length))-1):
		f.cut = true
		return out
	case fault == via.FaultCorrupt && ends, fault == via.FaultTruncate && ends:
		return append(out, f.corrupt(&p, fault == via.FaultTruncate))
	case fault == via.FaultDuplicate && isNew:
		return append(out, p, p)
	case fault == via.FaultReorder && isNew:
		f.delayed, f.delayedOf = append(f.delayed, p), s
		return out
	}
	out = append(out, p)
	if ends && len(f.delayed) > 0 && f.delayedOf != s {
		out = append(out, f.delayed...)
		f.delayed, f.delayedOf = nil, nil
	}
	return out
}

// corrupt returns a packet with a bit flipped after its ICRC was computed, or
// half of it: an odd number of bytes, which is never a valid size.
func (f *faultInjector) corrupt(p *rc.Packet, truncate bool) rc.Packet {
	b := append([]byte(nil), p.Header...)
	for _, s := range p.Payload {
		b = append(b, s...)
	}
	header, end := len(p.Header), len(b)
	b = append(b, p.Trailer...)
	f.icrc.Seal(b[end:], wire.Identification{}, b[:header], b[header:end])
	if truncate {
		b = f.truncate(b, end)
	} else if at := f.tagAt(end); header < at {
		b[at-1] ^= 0x10
	} else {
		b[end] ^= 0x10 // a flip in a header could pass for another valid packet
	}
	return rc.Packet{Header: b, Size: len(b), Work: p.Work, Sealed: true}
}

// tagAt returns the offset of the tag in a packet whose trailer begins at end,
// or end if it has none.
func (f *faultInjector) tagAt(end int) int {
	if f.transport.route.tag == 0 {
		return end
	}
	return end - wire.TagSize
}

// truncate cuts out the middle of a packet. The tag stays, if there is one: a
// packet without its tag is not the peer's.
func (f *faultInjector) truncate(b []byte, end int) []byte {
	at := f.tagAt(end)
	if at == end {
		return b[:len(b)/2|1]
	}
	rest := bytes.Clone(b[at:])
	half := at/2&^3 | (1-len(rest))&3
	return append(b[:half], rest...)
}

// cutLinks disconnects in the middle of a work, once the packets before the cut
// are sent.
func (g *engine) cutLinks(now time.Duration) {
	for _, t := range g.started {
		if t.faults == nil || !t.faults.cut || t.qp.Cause() != rc.OK {
			continue
		}
		t.handOverPosts()
		t.qp.Break()
		g.scheduleSend(t)
		e, id := t.link.endpoint, t.link.handshake.id
		e.withManager(func(m *cm.Manager, now time.Duration) {
			if c := e.conns[id]; c != nil {
				c.disconnecting = true
			}
			m.Disconnect(id, now)
		})
	}
	g.transmit(now)
}
