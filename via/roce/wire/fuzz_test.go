package wire

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzPacket requires that an accepted packet encodes to the same bytes, except
// for bits without a meaning, and that every refusal has a name.
func FuzzPacket(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var p Packet
		r := p.Decode(b, DefaultPKey)
		if !bytes.Equal(before, b) {
			t.Fatal("decoding changed the packet")
		}
		if r != Accepted {
			if r >= RefusedMAD || r == RefusedICRC {
				t.Fatalf("refused as %v", r)
			}
			return
		}
		again := encodePacket(&p)
		var got Packet
		if r := got.Decode(again, DefaultPKey); r != Accepted || !reflect.DeepEqual(got, p) {
			t.Fatalf("%v:\n%+v\nwas\n%+v", r, got, p)
		}
		if !bytes.Equal(meaning(&p, again), meaning(&p, before)) {
			t.Fatalf("accepted\n%sencoded\n%s", dump(before), dump(again))
		}
	})
}

// meaning clears the bits that no field of an accepted packet holds: reserved
// bits, atomics, pad and ICRC.
func meaning(p *Packet, b []byte) []byte {
	b = bytes.Clone(b)
	b[bthAtCongestion] &= bthFECN | bthBECN
	b[bthAtAck] &= bthAckRequest
	switch has := p.Opcode.Extensions(); {
	case has&ExtDETH != 0:
		b[BTHSize+dethAtQKey+4] = 0
	case has&ExtAtomicETH != 0:
		clear(b[BTHSize:])
	case has&ExtAtomicAckETH != 0:
		clear(b[BTHSize+AETHSize:])
	}
	clear(b[len(b)-ICRCSize-int(p.Pad):])
	return b
}

// FuzzMessage requires that only the type of its attribute decodes a message,
// and encodes it to the same bytes.
func FuzzMessage(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, want := PeekMAD(b)
		accepted := 0
		for _, s := range sampleMessages() {
			m, again := fresh(s.msg), fresh(s.msg)
			switch r := m.Decode(b); {
			case r == Accepted:
				accepted++
				encoded := encodeMessage(m)
				if r := again.Decode(encoded); r != Accepted || !reflect.DeepEqual(again, m) {
					t.Fatalf("%v:\n%+v\nwas\n%+v", r, again, m)
				}
				if req, ok := m.(*REQ); ok {
					checkAddressHeader(t, req)
				}
			case want == RefusedMAD && r != want:
				t.Fatalf("%s: refused as %v, want %v", s.name, r, want)
			}
		}
		if (want == Accepted) != (accepted == 1) || accepted > 1 {
			t.Fatalf("peek says %v, %d types accept", want, accepted)
		}
	})
}

func checkAddressHeader(t *testing.T, req *REQ) {
	var h, again CMA
	if h.Decode(req.Private[:]) != Accepted {
		return
	}
	if !h.Src.IsValid() || !h.Dst.IsValid() {
		t.Fatalf("accepted without addresses: %+v", h)
	}
	h.Encode(req.Private[:])
	if r := again.Decode(req.Private[:]); r != Accepted || again.SrcPort != h.SrcPort ||
		again.Src.Unmap() != h.Src.Unmap() || again.Dst.Unmap() != h.Dst.Unmap() {
		t.Fatalf("%v: %+v, was %+v", r, again, h)
	}
}

// FuzzSolve requires that Solve finds the ID of a packet, and agrees with
// elimination on a damaged one.
func FuzzSolve(f *testing.F) {
	f.Add(count(MinPacket), uint16(0x0b65), uint32(0))
	f.Add(count(64), uint16(0), uint32(1))
	f.Add(count(MaxPacket), uint16(0xffff), uint32(0x80000000))
	f.Fuzz(func(t *testing.T, b []byte, id uint16, damage uint32) {
		size := len(b) &^ 3
		if size < MinPacket || size > MaxPacket {
			return
		}
		b = b[:size]
		c, end := checksum(sampleSr4, sampleDs4), size-ICRCSize
		c.Seal(b[end:], Identification{ID: id}, b[:BTHSize], b[BTHSize:end])
		if got, ok := c.Solve(b, uint16(damage)); !ok || got != id {
			t.Fatalf("ID %#x solved as %#x, %v", id, got, ok)
		}
		for i := range ICRCSize {
			b[end+i] ^= byte(damage >> (8 * i))
		}
		wantID, want := solveByElimination(c.difference(b, Identification{}), size)
		got, ok := c.Solve(b, uint16(damage>>9))
		if ok != want || ok && got != wantID {
			t.Fatalf("ID %#x, damage %#x: %#x, %v, want %#x, %v", id, damage, got, ok, wantID, want)
		}
	})
}
