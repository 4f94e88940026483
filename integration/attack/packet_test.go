package attack

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// packet is a RoCE packet in a frame on the cable, for an attacker who can read
// all of it: also the tag of its connection, and so make its checksum right.
type packet struct {
	frame []byte
	b     []byte // its part of the frame, from BTH to ICRC
	bth   wire.BTH
	psn   wire.PSN // as its sender numbers it
	icrc  wire.ICRC
	id    wire.Identification
}

// parsePacket reports whether a frame has a packet. It shares the memory.
func parsePacket(frame []byte) (*packet, bool) {
	d, err := netbed.ParseDatagram(frame)
	if err != nil || len(d.Payload) < wire.MinPacket {
		return nil, false
	}
	p := &packet{frame: frame, b: d.Payload, id: wire.Identification{ID: d.ID, MayFragment: d.MayFragment}}
	p.bth.Decode(p.b)
	p.psn = p.bth.PSN
	p.icrc.Set(d.From, d.To)
	return p, p.bth.Opcode.IsKnown()
}

// reseal writes the checksum of the packet as it is now.
func (p *packet) reseal() {
	end := len(p.b) - wire.ICRCSize
	p.icrc.Seal(p.b[end:], p.id, p.b[:wire.BTHSize], p.b[wire.BTHSize:end])
}

// renumber gives the packet another PSN.
func (p *packet) renumber(psn wire.PSN) {
	p.bth.PSN = psn
	p.bth.Encode(p.b)
	p.reseal()
}

// connected reports whether the packet is of a connection, which has a tag.
func (p *packet) connected() bool {
	return p.bth.Opcode.Class() == wire.RC && len(p.b) >= p.bth.Opcode.HeaderSize()+wire.TagSize+wire.ICRCSize
}

// headers returns BTH and extensions.
func (p *packet) headers() []byte { return p.b[:p.bth.Opcode.HeaderSize()] }

// content returns the payload in front of the tag.
func (p *packet) content() []byte {
	end := len(p.b) - wire.ICRCSize - int(p.bth.Pad)
	if p.connected() {
		end -= wire.TagSize
	}
	return p.b[p.bth.Opcode.HeaderSize():end]
}

// tag returns the tag of packets of the connection in this direction.
func (p *packet) tag() []byte {
	end := len(p.b) - wire.ICRCSize - int(p.bth.Pad)
	return p.b[end-wire.TagSize : end]
}

// alike returns a frame with another packet from the same sender to the same
// queue pair: its payload is followed by the tag.
func (p *packet) alike(op wire.Opcode, psn wire.PSN, fill func(*wire.Packet)) []byte {
	q := wire.Packet{BTH: wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: p.bth.DestQP, PSN: psn}}
	if fill != nil {
		fill(&q)
	}
	q.Payload = append(bytes.Clone(q.Payload), p.tag()...)
	return netbed.Forge(p.frame, q.Append(nil, &p.icrc, p.id))
}

// clone returns the packet in other memory.
func (p *packet) clone() *packet {
	q, _ := parsePacket(bytes.Clone(p.frame))
	q.psn = p.psn
	return q
}

// TestPacketsOfAttacker: a packet that the attacker changes or makes is one
// that its receiver accepts.
func TestPacketsOfAttacker(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	path := t.TempDir() + "/packets"
	c := b.B.Capture(path)
	from, to := b.A.ListenUDP(b.A.IPv4, 0), b.B.ListenUDP(b.B.IPv4, wire.Port)
	_, err := from.WriteTo(make([]byte, 64), to.LocalAddr())
	testbed.Must(t, err)
	n, _, err := to.ReadFrom(make([]byte, 64))
	testbed.Must(t, err)
	c.Stop()
	frames, err := netbed.Frames(path)
	testbed.Must(t, err)
	var p *packet
	for _, f := range frames {
		if q, ok := parsePacket(f); ok && len(q.b) == n {
			p = q
		}
	}
	if p == nil {
		t.Fatal("the datagram was not captured")
	}
	accepted := func(frame []byte) *packet {
		t.Helper()
		p, ok := parsePacket(frame)
		if !ok || !p.icrc.Verify(p.b, p.id) || binary.BigEndian.Uint64(p.tag()) != 7 {
			t.Fatalf("%x is not accepted", frame)
		}
		return p
	}
	p.bth = wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: 5, PSN: 9}
	p.bth.Encode(p.b)
	wire.PutTag(p.tag(), 7)
	p.reseal()
	first := accepted(p.frame)
	if len(first.content()) != n-wire.BTHSize-wire.TagSize-wire.ICRCSize {
		t.Errorf("%d bytes of payload", len(first.content()))
	}
	first.renumber(100)
	accepted(first.frame)
	made := accepted(first.alike(wire.RCWriteOnly, 101, func(q *wire.Packet) {
		q.Payload, q.RETH = []byte("12345"), wire.RETH{Length: 5}
	}))
	if string(made.content()) != "12345" || made.bth.PSN != 101 || made.bth.DestQP != 5 {
		t.Errorf("made %+v with %q", made.bth, made.content())
	}
	accepted(first.alike(wire.RCAcknowledge, 102, nil))
}
