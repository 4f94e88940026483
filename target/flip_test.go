package target_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// fate is how the target treats a command.
type fate int

const (
	served   fate = iota
	refused       // answered with an error
	punished      // the connection ends
)

// classify decides the fate of a message that has a command's opcode, for the
// first command of a connection with 4 slots, whose memory is m, on a disk of
// 16 MiB.
func classify(msg []byte, m exposed, base uint16) fate {
	var cmd wire.Command
	err := cmd.Decode(msg)
	if err != nil && !errors.Is(err, wire.ErrUnknownOpcode) {
		return punished
	}
	if cmd.PathEpoch != 1 || cmd.Slot-base >= 4 {
		return punished
	}
	switch {
	case err != nil:
		return refused
	case cmd.Flags&(wire.FlagReplay|wire.FlagDataDigest) != 0 || cmd.Length > 1<<20:
		return punished
	case cmd.Export != 0 || cmd.Offset+uint64(cmd.Length) > 16<<20 || cmd.Offset > 16<<20 || cmd.Length == 0:
		return refused
	case cmd.Flags&(wire.FlagNoHole|wire.FlagFastZero) != 0:
		return refused
	}
	for _, s := range cmd.Segments[:cmd.NumSegments] {
		at := s.Addr - m.Addr()
		if s.Handle != m.Handle() || s.Addr < m.Addr() || at+uint64(s.Length) > uint64(len(m.Bytes())) {
			return punished
		}
	}
	return served
}

// TestFlippedBits flips every bit of a command, with a good checksum over it.
// The target follows the rules, and no other initiator notices.
func TestFlippedBits(t *testing.T) {
	r := newRig(t, target.Config{Depth: 4}, disk(t, "good"), disk(t, "bad"))
	good := r.healthy(t, "good")
	s := r.attach(t, "bad")
	must(t, s.io.close())
	r.reaches(state{connections: 3, sessions: 2, opens: "good1 bad1 "})
	base := r.state()
	fates := make(map[fate]int)
	for bit := range 60 * 8 {
		p := r.join(t, s, 1)
		m, err := p.expose(64<<10, readWrite)
		must(t, err)
		msg := p.encode(transfer(wire.OpRead, 4096, m.segment(8192, 8192)), nil)
		msg[bit/8] ^= 1 << (bit % 8)
		seal(msg)
		if !wire.RawOpcode(msg).IsCommand() {
			must(t, p.close())
			r.reaches(base)
			continue // the opcode of another kind of message
		}
		want := classify(msg, m, p.answer.SlotBase)
		must(t, p.send(msg))
		status, _, err := p.status()
		got := served
		switch {
		case errors.Is(err, errLost):
			got = punished
		case err != nil:
			t.Fatalf("bit %d: %v", bit, err)
		case status != wire.StatusOK:
			got = refused
		}
		if got != want {
			t.Errorf("bit %d of byte %d: fate %d (%v), want %d", bit%8, bit/8, got, status, want)
		}
		fates[got]++
		must(t, p.close())
		r.reaches(base)
	}
	if fates[served] == 0 || fates[refused] == 0 || fates[punished] == 0 {
		t.Errorf("fates %v: the flips do not reach all of them", fates)
	}
	good.progresses()
}

// FuzzMessages feeds a connection whatever bytes, in every role. The connection
// ends or goes on; the target serves the next session as before.
//
// The input is a byte for the role, then messages: a byte whose lowest bits say
// whether the checksums are made good and whether it is an immediate, two bytes
// of length, and the bytes.
func FuzzMessages(f *testing.F) {
	for _, m := range []wire.Message{
		&wire.LoginRequest{ID: 1, PathEpoch: 1, MinVersion: wire.Version, MaxVersion: wire.Version, Role: wire.RoleDiscover},
		&wire.OpenRequest{ID: 1, PathEpoch: 1, OpenID: 2, Mode: wire.OpenReadOnly, Name: "bad"},
		&wire.CloseRequest{ID: 1, PathEpoch: 1, OpenID: 1}, &wire.DiscoverRequest{ID: 1, PathEpoch: 1},
		&wire.Logout{ID: 1, PathEpoch: 1}, &wire.KeepAlive{ID: 1, PathEpoch: 1}, &wire.Fence{ID: 1, PathEpoch: 1},
	} {
		b := make([]byte, wire.MaxControlSize)
		n, err := m.Encode(b)
		if err != nil {
			f.Fatal(err)
		}
		for role := range byte(3) {
			f.Add(fuzzInput(role, b[:n]))
		}
	}
	for _, cmd := range []wire.Command{
		inlineRead(0, 512), inlineWrite(512, make([]byte, 512)),
		{Opcode: wire.OpFlush},
		{Opcode: wire.OpTrim, Length: 4096},
		{Opcode: wire.OpWriteZeroes, Length: 4096, Flags: wire.FlagFUA},
		transfer(wire.OpRead, 0, wire.Segment{Addr: 4096, Handle: 1, Length: 8192}),
	} {
		cmd.Seq, cmd.PathEpoch = 1, 1
		b := make([]byte, wire.MaxHeader)
		n := cmd.Encode(b)
		f.Add(fuzzInput(2, append(b[:n], make([]byte, cmd.InlineLength)...), b[:n]))
	}
	r := newRig(f, target.Config{Depth: 4}, disk(f, "good"), disk(f, "bad"))
	good := r.attach(f, "good")
	base := r.state()
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 || len(input) > 4096 {
			return
		}
		s := r.attach(t, "bad")
		unknown := r.peer(t)
		p := []*peer{unknown, s.control, s.io}[input[0]%3]
		for _, m := range fuzzMessages(input[1:]) {
			if p.lost {
				break
			}
			if m.immediate {
				_ = p.sendImmediate(wire.Immediate(binary.LittleEndian.Uint32(append(m.bytes, 0, 0, 0, 0))))
			} else {
				_ = p.send(m.bytes)
			}
		}
		// The initiator leaves without a logout.
		must(t, errors.Join(p.close(), unknown.close(), s.close()))
		waitFor(t, "the server to be as before", func() bool { return r.state() == base })
		if n := r.server.Status().Panics; n != 0 {
			t.Fatalf("%d panics: %s", n, r.log)
		}
		if err := errors.Join(good.writeInline(0, input), good.keepalive()); err != nil {
			t.Fatalf("the next initiator: %v", err)
		}
	})
}

type fuzzMessage struct {
	bytes     []byte
	immediate bool
}

func fuzzInput(role byte, messages ...[]byte) []byte {
	b := []byte{role}
	for _, m := range messages {
		b = append(b, 1, byte(len(m)), byte(len(m)>>8))
		b = append(b, m...)
	}
	return b
}

func fuzzMessages(b []byte) (list []fuzzMessage) {
	for len(b) >= 3 {
		how, n := b[0], int(b[1])|int(b[2])<<8
		b = b[3:]
		n = min(n, len(b))
		m := fuzzMessage{bytes: append([]byte(nil), b[:n]...), immediate: how&2 != 0}
		if how&1 != 0 && n >= 64 && !m.immediate {
			if wire.RawOpcode(m.bytes).IsControl() {
				binary.LittleEndian.PutUint32(m.bytes[16:], uint32(n-64))
				binary.LittleEndian.PutUint32(m.bytes[20:], wire.DataCRC(m.bytes[64:]))
			}
			seal(m.bytes)
		}
		list, b = append(list, m), b[n:]
	}
	return list
}
