package attack

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

var sweeps = flag.Int("attack.sweeps", 1, "how often an attacker sends a packet in each window of numbers, of each kind")

// sprays is how many packets hit a window of 512 PSNs: every 250th of 2²⁴.
const sprays = 1<<24/250 + 1

// forgery is what a sprayed packet would do.
type forgery struct {
	name string
	to   func(b *netbed.Bed) *netbed.Host
	of   wire.Opcode
	like wire.Opcode // of a packet of the connection that moves payload
	fill func(p *wire.Packet)
}

var forgeries = []forgery{
	{"messages to the target", func(b *netbed.Bed) *netbed.Host { return b.B }, wire.RCSendOnly, wire.RCReadResponseMiddle, func(p *wire.Packet) {
		p.Payload = bytes.Repeat([]byte("FORGED!!"), 11)
	}},
	{"messages to the initiator", func(b *netbed.Bed) *netbed.Host { return b.A }, wire.RCSendOnly, wire.RCWriteMiddle, func(p *wire.Packet) {
		p.Payload = bytes.Repeat([]byte("FORGED!!"), 11)
	}},
	{"payload of reads", func(b *netbed.Bed) *netbed.Host { return b.A }, wire.RCWriteMiddle, wire.RCWriteMiddle, func(p *wire.Packet) {
		p.Payload = bytes.Repeat([]byte("FORGED!!"), wire.MaxPayload/8-1)
		p.Payload = append(p.Payload, make([]byte, 8)...) // no block that a client wrote
	}},
}

// tap sees every packet on the cable and keeps the newest of each kind.
type tap struct {
	mu   sync.Mutex
	last map[tapped]*packet
}

type tapped struct {
	to *netbed.Host
	op wire.Opcode
}

// decide is a [netbed.Decide] that changes nothing.
func (a *tap) decide(to *netbed.Host, frame []byte) [][]byte {
	if frame == nil {
		return nil
	}
	if p, ok := parsePacket(frame); ok && p.connected() {
		p = p.clone()
		a.mu.Lock()
		a.last[tapped{to, p.bth.Opcode}] = p
		a.mu.Unlock()
	}
	return [][]byte{frame}
}

// newest returns the newest packet of a kind, or nil.
func (a *tap) newest(to *netbed.Host, op wire.Opcode) *packet {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[tapped{to, op}]
}

// sprayer sends forged packets with every 250th PSN.
type sprayer struct {
	*tap
	t      testing.TB
	middle *netbed.Middle
	bed    *netbed.Bed
	sent   int
}

// newSprayer comes between the hosts.
func newSprayer(t testing.TB, b *netbed.Bed) *sprayer {
	s := &sprayer{tap: &tap{last: map[tapped]*packet{}}, t: t, bed: b}
	s.middle = b.Interpose(s.decide)
	return s
}

// spray sends a forgery in each window of numbers, in the name of the sender of
// a packet: with its tag, or if blind, with others.
func (s *sprayer) spray(f *forgery, blind bool) {
	s.t.Helper()
	to := f.to(s.bed)
	like := s.newest(to, f.like)
	if like == nil {
		s.t.Fatalf("no packet like %s was seen", f.name)
	}
	r := rand.New(rand.NewPCG(uint64(s.sent), 1))
	p, _ := parsePacket(like.alike(f.of, 0, f.fill))
	for i := range sprays {
		if blind {
			wire.PutTag(p.tag(), r.Uint64())
		}
		p.renumber(wire.PSN(i * 250))
		testbed.Must(s.t, s.middle.Send(to, p.frame))
		s.sent++
		if i%128 == 0 {
			time.Sleep(time.Millisecond) // a receiver that is overrun loses them
		}
	}
}

// mostSweeps is how often a sweep may miss.
const mostSweeps = 20

// TestSprayOnCable: an attacker who knows everything of a connection but its
// keys and the numbers of its packets, and sends one in each window of numbers,
// ends connections of a sealed session, and has no byte accepted by the disk or
// by a reader; without the tag, not even those. In clear the same
// packets reach readers.
func TestSprayOnCable(t *testing.T) {
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		c, s, use := sprayed(t, true)
		losses := func() uint64 {
			i := c.attach.Status().Initiators[0]
			return i.SessionLosses + i.Stats.Reconnects
		}
		before := losses()
		for i := range *sweeps {
			s.spray(&forgeries[i%len(forgeries)], true)
			use("ok")
		}
		if n := losses() - before; n != 0 {
			t.Errorf("without the tag, %d connections ended", n)
		}
		for i := range forgeries {
			f := &forgeries[i]
			tags, ended, sent := c.failedTags(), losses(), s.sent
			found := func() bool { return losses() > ended && (i < len(forgeries)-1 || c.failedTags() > 0) }
			for n := 0; n < mostSweeps && (n < *sweeps || !found()); n++ {
				s.spray(f, false)
				use("ok")
			}
			t.Logf("%s: %d packets, %d failed tags, %d connections ended", f.name, s.sent-sent, c.failedTags()-tags, losses()-ended)
			if !found() {
				t.Errorf("%s: %d packets did not reach a connection", f.name, s.sent-sent)
			}
		}
		text, err := os.ReadFile(c.file)
		testbed.Must(t, err)
		if bytes.Contains(text, []byte("FORGED")) {
			t.Error("forged bytes are on the disk")
		}
		c.flawless()
	})
	t.Run("in clear", func(t *testing.T) {
		t.Parallel()
		_, s, use := sprayed(t, false)
		for n := 0; ; n++ {
			if n == mostSweeps {
				t.Fatalf("%d packets reached no reader", s.sent)
			}
			s.spray(&forgeries[2], false)
			if use("") == "other data" {
				t.Logf("%d packets", s.sent)
				return
			}
		}
	})
}

// sprayed starts a disk with an attacker on the cable. use writes and reads it,
// with an answer to each that is this one, or any; it returns the last one. It
// has messages of more numbers than are between two forgeries.
func sprayed(t *testing.T, sealed bool) (c *cable, s *sprayer, use func(want string) string) {
	t.Helper()
	c = newCable(t, sealed)
	if *programFlag == "" {
		c.program = testbed.PlainProgram(t) // with the race detector receivers are overrun
	}
	c.startTarget()
	c.startInitiator()
	k := testbed.Connect(t, c.uri())
	s = newSprayer(t, c.bed)
	round := 0
	use = func(want string) (answer string) {
		t.Helper()
		round = round%200 + 1
		for _, command := range []string{"check 0 1048576 7", fmt.Sprint("fill 1048576 1048576 ", round), fmt.Sprint("check 1048576 1048576 ", round), "reads 300 8"} {
			k.Send(command)
			if answer = k.Answer(); want != "" && answer != want {
				t.Fatalf("%s: %s after %d packets", command, answer, s.sent)
			} else if answer != "ok" {
				return answer
			}
		}
		return answer
	}
	k.Ask("fill 0 1048576 7", "ok")
	use("ok")
	return c, s, use
}
