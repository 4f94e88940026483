package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// drawEnds draws the ends of a packet, of one address family.
func drawEnds(t *rapid.T) (src, dst netip.AddrPort) {
	n := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
	draw := func(name string) netip.AddrPort {
		b := rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name)
		a, _ := netip.AddrFromSlice(b)
		return netip.AddrPortFrom(a, rapid.Uint16().Draw(t, name+" port"))
	}
	return draw("src"), draw("dst")
}

// drawPacket draws a packet that Put accepts.
func drawPacket(t *rapid.T) *Packet {
	op := rapid.SampledFrom(known()).Draw(t, "opcode")
	info := opcodes[op]
	p := &Packet{BTH: BTH{
		Opcode: op, Solicited: rapid.Bool().Draw(t, "solicited"),
		Migrated: rapid.Bool().Draw(t, "migrated"), FECN: rapid.Bool().Draw(t, "fecn"),
		BECN: rapid.Bool().Draw(t, "becn"), AckRequest: rapid.Bool().Draw(t, "ack"),
		PKey:   rapid.SampledFrom([]uint16{0xffff, 0x7fff}).Draw(t, "pkey"),
		DestQP: rapid.Uint32Range(1, mask24).Draw(t, "qp"),
		PSN:    PSN(rapid.Uint32Range(0, mask24).Draw(t, "psn")),
	}}
	var size int
	switch info.payload {
	case payloadAny:
		size = rapid.IntRange(0, MaxPayload).Draw(t, "size")
	case payloadSome:
		size = rapid.IntRange(1, MaxPayload).Draw(t, "size")
	case payloadFull:
		size = MTU(rapid.IntRange(int(MTU256), int(MTU4096)).Draw(t, "mtu")).Bytes()
	case payloadReserved:
		size = cnpReserved
	}
	p.Payload = make([]byte, size)
	for i := range p.Payload {
		p.Payload[i] = byte(i * int(p.PSN|1))
	}
	p.fill(info.extensions)
	if info.extensions&ExtAETH != 0 {
		p.AETH.MSN = MSN(rapid.Uint32Range(0, mask24).Draw(t, "msn"))
	}
	return p
}

// split cuts b into a few parts, of which some may be empty.
func split(t *rapid.T, b []byte) (parts [][]byte) {
	for range rapid.IntRange(0, 4).Draw(t, "cuts") {
		n := rapid.IntRange(0, len(b)).Draw(t, "cut")
		parts = append(parts, b[:n])
		b = b[n:]
	}
	return append(parts, b)
}

// headers returns the IP and UDP headers of a sender.
func headers(src, dst netip.AddrPort, id Identification, size int, other byte) (ip, udp []byte) {
	if src.Addr().Is4() {
		ip = []byte{0x45, other, 0, 0, 0, 0, 0x40, 0, other, 17, other, ^other}
		binary.BigEndian.PutUint16(ip[2:], uint16(28+size))
		binary.BigEndian.PutUint16(ip[4:], id.ID)
		if id.MayFragment {
			ip[6] = 0
		}
	} else {
		ip = []byte{0x60 | other>>4, other, other, ^other, 0, 0, 17, other}
		binary.BigEndian.PutUint16(ip[4:], uint16(8+size))
	}
	ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	udp = binary.BigEndian.AppendUint16(nil, src.Port())
	udp = binary.BigEndian.AppendUint16(udp, dst.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+size))
	return ip, append(udp, other, ^other)
}

// A packet decodes to its original. Its ICRC agrees with the definition, for
// any division of the payload and any change by routers.
func TestPacketRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawEnds(t)
		id := Identification{rapid.Uint16().Draw(t, "id"), rapid.Bool().Draw(t, "fragment")}
		p, c := drawPacket(t), checksum(src, dst)
		var header [MaxHeader]byte
		trailer := [7]byte{0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}
		n := p.Put(header[:], len(p.Payload))
		end := c.Seal(trailer[:], id, header[:n], split(t, p.Payload)...)
		b := bytes.Join([][]byte{header[:n], p.Payload, trailer[:end]}, nil)
		if again := p.Append([]byte("before"), c, id); string(again) != "before"+string(b) {
			t.Fatal("in one piece it is another packet")
		}

		var got Packet
		if r := got.Decode(b, DefaultPKey); r != Accepted {
			t.Fatal(r)
		}
		if !bytes.Equal(got.Payload, p.Payload) || cap(got.Payload) != len(p.Payload) {
			t.Fatal("another payload, or room to append to it")
		}
		got.Payload = p.Payload
		if got.BTH != p.BTH || got.RETH != p.RETH || got.AETH != p.AETH || got.DETH != p.DETH ||
			got.Immediate != p.Immediate || got.Invalidate != p.Invalidate {
			t.Fatalf("decoded %+v, want %+v", got, *p)
		}

		other := rapid.Byte().Draw(t, "what routers change")
		ip, udp := headers(src, dst, id, len(b), other)
		want := icrcOf(maskOf(ip, udp, b[:len(b)-ICRCSize]))
		if !bytes.Equal(b[len(b)-ICRCSize:], want) {
			t.Fatalf("ICRC %x, want %x", b[len(b)-ICRCSize:], want)
		}
		b[bthAtCongestion] = other
		if !c.Verify(b, id) {
			t.Fatal("the ICRC is called wrong")
		}
		bit := rapid.IntRange(0, len(b)*8-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if c.Verify(b, id) != (bit/8 == bthAtCongestion) {
			t.Fatalf("bit %d flipped: %v", bit, c.Verify(b, id))
		}
	})
}

// Set replaces the ends of an earlier Set.
func TestSetAgain(t *testing.T) {
	c := checksum(sampleSrc, sampleDst)
	c.Set(sampleSr4, sampleDs4)
	if !c.IsIPv4() || *c != *checksum(sampleSr4, sampleDs4) {
		t.Error("something of IPv6 is left")
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(sampleSr4.Addr().As16()), sampleSr4.Port())
	if *checksum(mapped, sampleDs4) != *c {
		t.Error("an address mapped to IPv6 is another address")
	}
	c.Set(sampleSrc, sampleDst)
	if c.IsIPv4() || *c != *checksum(sampleSrc, sampleDst) {
		t.Error("something of IPv4 is left")
	}
}

func TestNoRoomForAnICRC(t *testing.T) {
	c := checksum(sampleSr4, sampleDs4)
	for n := range MinPacket {
		b := make([]byte, n)
		if _, ok := c.Solve(b, 0); ok || c.Verify(b, Identification{}) {
			t.Errorf("%d bytes have a right ICRC", n)
		}
	}
}

// Solve finds every ID at every length, with any guess.
func TestSolveFindsTheID(t *testing.T) {
	c := checksum(sampleSr4, sampleDs4)
	for size := MinPacket; size <= MaxPacket; size += 4 {
		b := count(size)
		for _, id := range []uint16{0, 1, 63, 0x0b65, 0x8000, 0xffff, uint16(size * 0x9e37)} {
			c.Seal(b[size-ICRCSize:], Identification{ID: id}, b[:BTHSize], b[BTHSize:size-ICRCSize])
			for _, guess := range []uint16{0, id, 63, ^id} {
				if got, ok := c.Solve(b, guess); !ok || got != id {
					t.Fatalf("%d bytes with ID %#x, guess %#x: solved as %#x, %v", size, id, guess, got, ok)
				}
			}
		}
	}
}

// Solve finds no ID for a packet with one or two flipped bits.
func TestSolveFindsDamage(t *testing.T) {
	c := checksum(sampleSr4, sampleDs4)
	b := samplePacket(RCSendOnly).Append(nil, c, Identification{ID: 7})
	bits := len(b) * 8
	flip := func(bit int) { b[bit/8] ^= 1 << (bit % 8) }
	for first := range bits {
		flip(first)
		for second := first; second < bits; second++ {
			if second != first {
				flip(second)
			}
			_, ok := c.Solve(b, 7)
			masked := first/8 == bthAtCongestion && second/8 == bthAtCongestion
			if ok != masked {
				t.Errorf("bits %d and %d flipped: solved: %v", first, second, ok)
			}
			if second != first {
				flip(second)
			}
		}
		flip(first)
	}
}

// Solve finds no ID for a packet without DF, except one in 2^16.
func TestSolveAssumesDF(t *testing.T) {
	c := checksum(sampleSr4, sampleDs4)
	b := samplePacket(RCSendOnly).Append(nil, c, Identification{ID: 7, MayFragment: true})
	if id, ok := c.Solve(b, 0); ok {
		t.Errorf("solved with ID %d", id)
	}
	if !c.Verify(b, Identification{ID: 7, MayFragment: true}) {
		t.Error("the ICRC is called wrong")
	}
}

// solveByElimination finds the ID by Gaussian elimination over the effect of
// each of its bits on the CRC of a packet of size bytes.
func solveByElimination(difference uint32, size int) (id uint16, ok bool) {
	raw := func(b []byte) uint32 { return ^crc32.Update(0xffff_ffff, crc32.IEEETable, b) }
	type row struct {
		crc uint32
		id  uint16
	}
	var rows []row
	for bit := range 16 {
		b := make([]byte, 16+8+size-ICRCSize) // from the ID to the end
		binary.BigEndian.PutUint16(b, 1<<bit)
		r := row{raw(b), 1 << bit}
		for _, other := range rows {
			if low := other.crc & -other.crc; r.crc&low != 0 {
				r = row{r.crc ^ other.crc, r.id ^ other.id}
			}
		}
		rows = append(rows, r)
	}
	for _, r := range rows {
		if low := r.crc & -r.crc; difference&low != 0 {
			difference, id = difference^r.crc, id^r.id
		}
	}
	return id, difference == 0
}

// Division and elimination agree, on differences that an ID causes and on
// others.
func TestTwoWaysToSolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 4 * rapid.IntRange(MinPacket/4, MaxPacket/4).Draw(t, "words")
		difference := rapid.Uint32().Draw(t, "difference")
		if rapid.Bool().Draw(t, "solvable") {
			ip := make([]byte, 16+8+size-ICRCSize)
			binary.BigEndian.PutUint16(ip, rapid.Uint16().Draw(t, "id"))
			difference = ^crc32.Update(0xffff_ffff, crc32.IEEETable, ip)
		}
		wantID, want := solveByElimination(difference, size)
		gotID, got := identify(difference, size)
		if got != want || got && gotID != wantID {
			t.Fatalf("%#x, %d bytes: %#x, %v, want %#x, %v", difference, size, gotID, got, wantID, want)
		}
	})
}
