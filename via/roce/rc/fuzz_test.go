package rc_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// FuzzReceive plays a peer that sends anything. Each packet is 8 bytes of the
// input: opcode, PSN (signed, of the direction), payload, length, key, address,
// syndrome, and what this end does before it. Nothing panics, works and
// receives end once, and only what the peer may write is written.
func FuzzReceive(f *testing.F) {
	seed := func(packets ...[8]byte) {
		var b []byte
		for _, p := range packets {
			b = append(b, p[:]...)
		}
		f.Add(b, uint8(0))
		f.Add(b, uint8(3))
	}
	seed([8]byte{4, 0, 8, 0, 0, 0, 0, 1}, [8]byte{6, 1, 255, 4, 1, 0}, [8]byte{8, 2, 3})
	seed([8]byte{17, 0, 0, 0, 0, 0, 31, 2}, [8]byte{17, 1, 0, 0, 0, 0, 0x60, 3}, [8]byte{17, 2, 0, 0, 0, 0, 0x2e, 4})
	seed([8]byte{13, 0, 255, 0, 0, 0, 31, 4}, [8]byte{15, 2, 88, 0, 0, 0, 31}, [8]byte{12, 0, 0, 3, 1, 1}, [8]byte{12, 1, 0, 2, 1, 5})
	seed([8]byte{0x24, 0, 8, 0, 0, 0, 0, 1}, [8]byte{0x26, 1, 255, 4, 1}, [8]byte{0x28, 4, 3})
	f.Fuzz(func(t *testing.T, in []byte, mode uint8) {
		c := newConsumer("a", 1, true, 512, 4)
		cfg := scriptConfig()
		cfg.PSN, cfg.PeerPSN, cfg.Window = 0xffffff, 0xfffffe, 8
		cfg.Unreliable = mode&1 != 0
		cfg.WaitForReceive = mode&4 != 0
		var stash *rc.Stash
		if mode&2 != 0 {
			stash = rc.NewStash(4)
			cfg.Stash, cfg.Selective = stash, mode&8 != 0
		}
		qp, err := rc.New(cfg, c)
		if err != nil {
			t.Fatal(err)
		}
		x := &anything{t: t, qp: qp, burst: rc.NewBurst(8), now: time.Second, cfg: cfg}
		for ; len(in) >= 8 && x.posted < 1000; in = in[8:] {
			x.act(in[7])
			x.receive(in)
			x.drain()
		}
		qp.Break()
		x.drain()
		x.drain()
		if x.posted != 0 || x.received != 0 {
			t.Errorf("%d works and %d receives did not end", x.posted, x.received)
		}
		if stash != nil && stash.Room() != 4 {
			t.Errorf("%d packets are still kept", 4-stash.Room())
		}
		for _, b := range x.guards {
			if !bytes.Equal(b[:8], guard) || !bytes.Equal(b[len(b)-8:], guard) {
				t.Error("bytes beside a work's memory were written")
			}
		}
		if c.validateEnds(); c.failure != nil {
			t.Error(c.failure)
		}
	})
}

var guard = []byte("guarded!")

// anything is a queue pair whose peer and consumer do anything.
type anything struct {
	t                *testing.T
	qp               *rc.QP
	cfg              rc.Config
	burst            *rc.Burst
	now              time.Duration
	posted, received int
	guards           [][]byte
}

// act makes a call of the consumer, chosen by a byte of the input.
func (x *anything) act(a byte) {
	n := int(a>>3) * 40
	b := append(append(bytes.Clone(guard), make([]byte, n)...), guard...)
	x.guards = append(x.guards, b)
	b = b[8 : 8+n]
	switch a & 7 {
	case 1, 6:
		if x.qp.PostReceive(&rc.Receive{Segments: [][]byte{b}}) {
			x.received++
		}
	case 2, 3, 4:
		if x.qp.Post(&rc.Work{Op: rc.Op(a&7 - 2), Key: 1, HasImmediate: a&8 != 0, Segments: [][]byte{b}}) {
			x.posted++
		}
	case 5:
		x.now += time.Duration(a) * time.Millisecond
		x.qp.Timeout(x.now)
	}
}

// receive decodes 8 bytes of the input to a packet and hands it over.
func (x *anything) receive(in []byte) {
	var p wire.Packet
	op := wire.Opcode(in[0])
	base := x.cfg.PeerPSN
	if op.Flags()&wire.Response != 0 {
		base = x.cfg.PSN
	}
	p.BTH = wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: 1, PSN: base.Add(int(int8(in[1]))), AckRequest: in[6]&1 != 0}
	n := int(in[2])
	if n == 255 {
		n = 256
	}
	p.Payload = bytes.Repeat([]byte{0xee}, n)
	p.RETH = wire.RETH{Key: remoteKey + uint32(in[4]>>7), Addr: remoteAddr + uint64(in[5])*16, Length: uint32(n) + uint32(in[3])*64}
	p.AETH.Syndrome = wire.Syndrome(in[6])
	r := wire.Accepted
	if in[4]&1 != 0 {
		r = wire.Refusal(in[4] >> 2 % uint8(wire.NumRefusals))
	}
	x.qp.Receive(&p, r, x.now)
}

// drain polls all completions and events, and emits all packets.
func (x *anything) drain() {
	x.burst.Reset()
	x.qp.Emit(x.burst, x.now)
	for x.qp.PollSend() != nil {
		x.posted--
	}
	for x.qp.PollReceive() != nil {
		x.received--
	}
	for x.qp.PollEvent() != rc.NoEvent {
	}
	if x.posted < 0 || x.received < 0 {
		x.t.Fatal("a work ended twice")
	}
}
