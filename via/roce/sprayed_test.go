package roce_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/wire"
)

// sprays is how many packets hit a window of 512 PSNs: every 250th of 2²⁴.
const sprays = 1<<24/250 + 1

// spray sends a packet for every 250th PSN in the name of x, and has the ends
// make progress between them.
func (s *spied) spray(change func(*wire.Packet)) {
	for i := range sprays {
		s.send(s.px, s.py, s.packet(func(p *wire.Packet) {
			change(p)
			p.PSN = wire.PSN(i * 250)
		}))
		if i%32 == 0 {
			s.y.poll()
		}
	}
	s.x.poll()
	s.y.poll()
}

// Packets with all numbers of a connection and a tag in which one bit differs
// change nothing.
func TestOtherTags(t *testing.T) {
	s := newSpied(t)
	before := badSource(s.atY())
	next := s.expects()
	for bit := range 8 * wire.TagSize {
		b := s.tagged(s.packet(func(p *wire.Packet) { p.PSN = next }))
		b[len(b)-wire.ICRCSize-wire.TagSize+bit/8] ^= 1 << (bit % 8)
		s.send(s.px, s.py, s.seal(b))
	}
	within(t, "the packets to be counted", func() bool {
		s.y.poll()
		return badSource(s.atY()) >= before+8*wire.TagSize
	})
	s.works(t)
	s.close()
}

// An attacker who knows the addresses, the port and the queue pair of a
// connection, but no PSN and no tag, replaces no message.
func TestSprayedMessages(t *testing.T) {
	s := newSpied(t)
	before := badSource(s.atY())
	const messages, size, posted = 600, 64, 32
	receive := func(i int) {
		s.y.used = i % posted
		check(t, s.y.vi.PostRecv(s.y.build(via.OpRecv, i%posted*size, size, nil)))
	}
	for i := range posted {
		receive(i)
	}
	s.spray(func(p *wire.Packet) { copy(p.Payload, "FORGED") })
	sent, received, done := 0, 0, 0
	for received < messages {
		for ; sent < messages && sent-done < posted/2 && sent-received < posted/2; sent++ {
			s.x.used = sent % posted
			copy(s.x.payload(sent%posted*size, size), "genuine")
			check(t, s.x.vi.PostSend(s.x.build(via.OpSend, sent%posted*size, size, nil)))
		}
		done += s.x.poll()
		for range s.y.poll() {
			if b := s.y.payload(received%posted*size, size); !bytes.HasPrefix(b, []byte("genuine")) {
				t.Fatalf("message %d is %q", received, b[:7])
			}
			receive(received)
			received++
		}
	}
	if n := badSource(s.atY()) - before; n == 0 {
		t.Error("no forged packet is counted")
	}
	s.close()
}

// The same attacker places no byte into an RDMA Write in progress: a middle
// packet of a Write carries neither key nor address.
func TestSprayedWrite(t *testing.T) {
	s := newSpied(t)
	const size = 1 << 20
	want := bytes.Repeat([]byte{0x5a}, size)
	copy(s.x.payload(0, size), want)
	s.spray(func(p *wire.Packet) {
		p.Opcode, p.Payload = wire.RCWriteMiddle, bytes.Repeat([]byte{0xee}, 4096)
	})
	s.x.used = 0
	d := s.x.desc()
	d.Reset(via.OpRdmaWrite)
	d.SetRemote(s.y.addr(0), s.y.mem.Handle())
	d.AddSegment(s.x.addr(0), s.x.mem.Handle(), size)
	check(t, s.x.vi.PostSend(d))
	done := 0
	within(t, "the write", func() bool { s.y.poll(); done += s.x.poll(); return done == 1 })
	if got := s.y.payload(0, size); !bytes.Equal(got, want) {
		t.Errorf("%d forged bytes are in the write", bytes.Count(got, []byte{0xee}))
	}
	if c := append(s.x.codes(), s.y.codes()...); len(c) != 0 {
		t.Errorf("callbacks: %v", c)
	}
	s.close()
}
