package target_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestPoolOfOneTransfer: transfer memory for exactly one of the longest
// commands serves many of all lengths at a time, and every byte gets where it
// belongs.
func TestPoolOfOneTransfer(t *testing.T) {
	for name, features := range map[string]wire.Features{"immediates": wire.FeatureImmediate, "replies": 0} {
		t.Run(name, func(t *testing.T) {
			const depth, longest = 16, 64 << 10
			r := newRig(t, target.Config{Depth: depth, MaxIO: longest, PoolBytes: longest}, fileDisk(t, "disk"))
			s := r.attach(t, "disk")
			must(t, s.io.close())
			s.io = r.peer(t)
			q := s.io.loginRequest(wire.RoleIO, s.id, 2)
			q.Features = features
			must(t, s.io.login(q))
			m, err := s.io.expose(2*depth*longest, readWrite)
			must(t, err)
			out, in := m.Bytes()[:depth*longest], m.Bytes()[depth*longest:]
			for round := range 8 {
				for i := range out {
					out[i] = byte(i>>9) ^ byte(round*31)
				}
				s.flood(t, m, 0, wire.OpWrite, depth, longest, round)
				clear(in)
				s.flood(t, m, depth*longest, wire.OpRead, depth, longest, round)
				if !bytes.Equal(in[:1000], out[:1000]) {
					t.Fatalf("round %d: other data than written", round)
				}
			}
			status := r.server.Status()
			stats, x := &status.Stats, &status.Exports[0].Stats
			if stats.WaitsForMemory == 0 {
				t.Error("no command ever waited for memory: the test proves nothing")
			}
			if x.Waits < stats.WaitsForMemory || x.Waits > x.Reads+x.Writes {
				t.Errorf("%d of %d commands waited, %d of them for memory", x.Waits, x.Reads+x.Writes, stats.WaitsForMemory)
			}
		})
	}
}

// flood keeps a command of changing length and segments in flight in every
// slot, and checks what a Read brought.
func (s *session) flood(t testing.TB, m exposed, at int, op wire.Opcode, depth, longest, round int) {
	t.Helper()
	length := func(slot int) int { return longest >> ((slot + round) % 4) }
	for slot := range depth {
		n := length(slot)
		segments := []wire.Segment{m.segment(at+slot*longest, n)}
		if slot%3 == 0 { // in four pieces
			segments = nil
			for i := range 4 {
				segments = append(segments, m.segment(at+slot*longest+i*n/4, n/4))
			}
		}
		cmd := transfer(op, uint64(slot*longest), segments...)
		cmd.Slot, cmd.Export = uint16(slot), s.export.Export
		must(t, s.io.command(cmd, nil))
	}
	for range depth {
		status, _, err := s.io.status()
		if err == nil && status != wire.StatusOK {
			err = fmt.Errorf("answered %v", status)
		}
		must(t, err)
	}
	if op != wire.OpRead {
		return
	}
	for slot := range depth {
		from, n := slot*longest, length(slot)
		if !bytes.Equal(m.Bytes()[at+from:at+from+n], m.Bytes()[from:from+n]) {
			t.Fatalf("slot %d: %d bytes read are not those written", slot, n)
		}
	}
}

// TestLongCommandsDoNotStarve: a command that needs all of the memory is not
// overtaken by those that came after it.
func TestLongCommandsDoNotStarve(t *testing.T) {
	const longest = 64 << 10
	g := newGate(1, 4<<20)
	r := newRig(t, target.Config{Depth: 16, MaxIO: longest, PoolBytes: longest}, target.Export{Name: "disk", Device: g})
	s := r.attach(t, "disk")
	m, err := s.io.expose(16*longest, readWrite)
	must(t, err)
	const long = 3 // the slot of the long command
	for slot := range 12 {
		n := 8 << 10
		if slot == long {
			n = longest
		}
		cmd := transfer(wire.OpRead, uint64(slot)<<16, m.segment(slot*longest, n))
		cmd.Slot, cmd.Export = uint16(slot), s.export.Export
		must(t, s.io.command(cmd, nil))
	}
	for range long {
		<-g.started
	}
	close(g.pass)
	if first := <-g.started; first != long<<16 {
		t.Errorf("the command at %#x overtook the long one", first)
	}
	for range 12 {
		if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
			t.Fatal(status, err)
		}
	}
}

// TestFlags: the target accepts the flags of every operation.
func TestFlags(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "memory"), fileDisk(t, "file"))
	for _, name := range []string{"memory", "file"} {
		s := r.attach(t, name)
		data := bytes.Repeat([]byte{7}, 4096)
		write := inlineWrite(0, data)
		write.Flags = wire.FlagFUA
		m, err := s.io.expose(64<<10, readWrite)
		must(t, err)
		pull := transfer(wire.OpWrite, 4096, m.segment(0, 64<<10))
		pull.Flags = wire.FlagFUA
		read := inlineRead(0, 512)
		read.Flags = wire.FlagFUA
		for _, c := range []struct {
			cmd  wire.Command
			data []byte
		}{
			{write, data},
			{pull, nil},
			{read, nil},
			{wire.Command{Opcode: wire.OpFlush, Flags: wire.FlagFUA}, nil},
			{wire.Command{Opcode: wire.OpTrim, Flags: wire.FlagFUA, Length: 4096}, nil},
			{wire.Command{Opcode: wire.OpWriteZeroes, Flags: wire.FlagFUA | wire.FlagNoHole, Length: 4096}, nil},
			{wire.Command{Opcode: wire.OpWriteZeroes, Length: 16 << 20}, nil},
			{wire.Command{Opcode: wire.OpTrim, Length: 16 << 20}, nil},
		} {
			if _, err := s.run(c.cmd, c.data, wire.StatusOK); err != nil {
				t.Errorf("%s, flags %d: %v", name, c.cmd.Flags, err)
			}
		}
	}
}

// TestKeepAlivesAreAnswered, all of them, also while every send is in use.
func TestKeepAlivesAreAnswered(t *testing.T) {
	r := newRig(t, target.Config{Depth: 4}, disk(t, "disk"))
	s := r.attach(t, "disk")
	for range 20 {
		must(t, s.io.sendImmediate(wire.MakeImmediate(wire.ImmKeepAlive, 1, 0, 0)))
		e, err := s.io.receive()
		must(t, err)
		if e.msg != nil || e.immediate.Type() != wire.ImmKeepAliveAck {
			t.Fatalf("a keepalive was answered by %+v", e)
		}
	}
}

// TestKeepalivesWithoutImmediates: they are messages then, answered also while
// every send is in use, and an immediate ends the connection.
func TestKeepalivesWithoutImmediates(t *testing.T) {
	r := newRig(t, target.Config{}, fileDisk(t, "disk"))
	s := r.attach(t, "disk")
	must(t, s.io.close())
	s.io = r.peer(t)
	q := s.io.loginRequest(wire.RoleIO, s.id, 2)
	q.Features = 0
	must(t, s.io.login(q))
	payload := make([]byte, 512)
	for i := range 200 {
		ping := wire.KeepAlive{ID: uint32(i), PathEpoch: 1}
		for slot := range uint16(4) { // answers beside it
			cmd := inlineWrite(0, payload)
			cmd.Slot, cmd.Export = slot, s.export.Export
			must(t, s.io.command(cmd, payload))
		}
		b := make([]byte, wire.HeaderSize)
		n, err := ping.Encode(b)
		must(t, err)
		must(t, s.io.send(b[:n]))
		replies, acks := 0, 0
		for replies < 4 || acks < 1 {
			e, err := s.io.receive()
			must(t, err)
			var ack wire.KeepAlive
			switch {
			case e.msg == nil:
				t.Fatal("an immediate arrives that was not negotiated")
			case wire.RawOpcode(e.msg) == wire.OpReply:
				replies++
			default:
				must(t, ack.Decode(e.msg))
				if acks++; !ack.Ack || ack.ID != ping.ID || ack.PathEpoch != 1 {
					t.Fatalf("keepalive %d is answered by %+v", i, ack)
				}
			}
		}
	}
	must(t, s.io.sendImmediate(wire.MakeImmediate(wire.ImmKeepAlive, 1, 0, 0)))
	if _, err := s.io.ends(); err != nil {
		t.Errorf("after an immediate: %v", err)
	}
}
