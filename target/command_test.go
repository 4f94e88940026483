package target_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// seal fixes the checksum of a command that was changed.
func seal(b []byte) []byte {
	crc := crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli))
	if end := int(binary.LittleEndian.Uint16(b[58:])); end > 64 && end <= len(b) {
		crc = crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), b[64:end])
	}
	binary.LittleEndian.PutUint32(b[60:], crc)
	return b
}

// TestBrokenCommands: what breaks the protocol costs the connection, and
// nothing else.
func TestBrokenCommands(t *testing.T) {
	r := newRig(t, target.Config{Depth: 4}, disk(t, "good"), disk(t, "bad"), fileDisk(t, "file"))
	good := r.healthy(t, "good")
	raw := func(change func(b []byte)) func(*session) error {
		return func(s *session) error {
			b := s.io.encode(inlineRead(0, 512), nil)
			change(b)
			return s.io.send(b)
		}
	}
	field := func(at int, v ...byte) func(*session) error {
		return raw(func(b []byte) { copy(b[at:], v); seal(b) })
	}
	nowhere := func(op wire.Opcode, change func(*wire.Segment)) func(*session) error {
		return func(s *session) error {
			m, err := s.io.expose(64<<10, readWrite)
			if err != nil {
				return err
			}
			g := m.segment(0, 8192)
			change(&g)
			return s.io.command(transfer(op, 0, g), nil)
		}
	}
	cases := map[string]func(*session) error{
		"wrong checksum":          raw(func(b []byte) { b[60]++ }),
		"cut off":                 func(s *session) error { return s.io.send(s.io.encode(inlineRead(0, 512), nil)[:63]) },
		"payload unasked":         func(s *session) error { return s.io.send(s.io.encode(inlineRead(0, 512), make([]byte, 8))) },
		"payload short":           func(s *session) error { return s.io.send(s.io.encode(inlineWrite(0, make([]byte, 512)), nil)) },
		"wrong epoch":             field(12, 2),
		"slot of another":         field(4, 4),
		"last slot there is":      field(4, 0xff, 0xff),
		"replay":                  field(1, byte(wire.FlagReplay)),
		"digest":                  field(1, byte(wire.FlagDataDigest)),
		"reserved flags":          field(1, 0xc0),
		"push":                    func(s *session) error { return s.io.command(push(), nil) },
		"inline above negotiated": func(s *session) error { return s.io.command(inlineWrite(0, make([]byte, 4097)), make([]byte, 4097)) },
		"inline read above":       func(s *session) error { return s.io.command(inlineRead(0, 4097), nil) },
		"transfer above": func(s *session) error {
			return s.io.command(transfer(wire.OpRead, 0, wire.Segment{Addr: 1 << 20, Handle: 1, Length: 1<<20 + 1}), nil)
		},
		"sequence jump": func(s *session) error {
			_, err := s.readInline(0, 512)
			s.io.seq[0]++
			return errors.Join(err, s.io.command(inlineRead(0, 512), nil))
		},
		"sequence repeated": func(s *session) error {
			_, err := s.readInline(0, 512)
			s.io.seq[0]--
			return errors.Join(err, s.io.command(inlineRead(0, 512), nil))
		},
		"control request": func(s *session) error {
			return sendControl(s.io, &wire.OpenRequest{ID: 1, PathEpoch: 1, OpenID: 9, Mode: wire.OpenReadOnly})
		},
		"unknown immediate":         func(s *session) error { return s.io.sendImmediate(wire.MakeImmediate(9, 1, 0, 0)) },
		"answer in four bytes":      func(s *session) error { return s.io.sendImmediate(wire.MakeImmediate(wire.ImmOK, 1, 1, 0)) },
		"keepalive of other epoch":  func(s *session) error { return s.io.sendImmediate(wire.MakeImmediate(wire.ImmKeepAlive, 3, 0, 0)) },
		"reply":                     func(s *session) error { return sendReply(s.io) },
		"read to nowhere":           nowhere(wire.OpRead, func(g *wire.Segment) { g.Handle ^= 1 << 20 }),
		"read beyond the region":    nowhere(wire.OpRead, func(g *wire.Segment) { g.Addr += 60 << 10 }),
		"write from nowhere":        nowhere(wire.OpWrite, func(g *wire.Segment) { g.Addr = 4096 }),
		"write from beyond by one":  nowhere(wire.OpWrite, func(g *wire.Segment) { g.Addr += 56<<10 + 1 }),
		"read to read-only memory":  forbidden(wire.OpRead, via.MemAttributes{EnableRdmaRead: true}),
		"write from what is hidden": forbidden(wire.OpWrite, via.MemAttributes{EnableRdmaWrite: true}),
	}
	for _, export := range []string{"bad", "file"} {
		for name, do := range cases {
			t.Run(export+"/"+name, func(t *testing.T) {
				base := r.state()
				s := r.attach(t, export)
				must(t, do(s))
				if _, err := s.io.ends(); err != nil {
					t.Fatal(err)
				}
				// The session goes on: its control connection did nothing
				// wrong.
				again := r.join(t, s, 2)
				must(t, errors.Join(s.keepalive(), again.close(), s.close()))
				r.reaches(base)
				good.progresses()
			})
		}
	}
}

// keepalive sends a keepalive and waits for its ack.
func (s *session) keepalive() error {
	var ack wire.KeepAlive
	return s.control.ask(&wire.KeepAlive{ID: 5, PathEpoch: 1}, &ack)
}

func blockStatus(offset uint64, length uint32) wire.Command {
	return wire.Command{Opcode: wire.OpBlockStatus, Mode: wire.ModeInline, Offset: offset, Length: length}
}

// push asks for the reserved data mode.
func push() wire.Command {
	return wire.Command{Opcode: wire.OpWrite, Mode: 2, Length: 512}
}

// sendControl sends a control message.
func sendControl(p *peer, m wire.Message) error {
	b := make([]byte, wire.MaxControlSize)
	n, err := m.Encode(b)
	return errors.Join(err, p.send(b[:n]))
}

func sendReply(p *peer) error {
	b := make([]byte, wire.HeaderSize)
	(&wire.Reply{PathEpoch: 1, Seq: 1}).Encode(b)
	return p.send(b)
}

// forbidden exposes memory that does not allow what the command needs.
func forbidden(op wire.Opcode, attrs via.MemAttributes) func(*session) error {
	return func(s *session) error {
		m, err := s.io.expose(8192, attrs)
		return errors.Join(err, s.io.command(transfer(op, 0, m.segment(0, 8192)), nil))
	}
}

// TestBlockStatus: the answer has as many extents as fit inside a message, and
// what it says is true.
func TestBlockStatus(t *testing.T) {
	memory := target.Export{Name: "bad", Device: openDevice(t, "memory:16MiB")}
	r := newRig(t, target.Config{InlineMax: 512}, disk(t, "good"), memory, fileDisk(t, "file"))
	for _, export := range []string{"bad", "file"} {
		t.Run(export, func(t *testing.T) {
			s := r.attach(t, export)
			size := uint32(16 << 20)
			must(t, errors.Join(
				s.writeInline(8<<20, make([]byte, 512)),
				s.writeInline(12<<20, make([]byte, 512))))
			if _, err := s.run(wire.Command{Opcode: wire.OpPrefetch, Length: size}, nil, wire.StatusOK); err != nil {
				t.Error(err)
			}
			list, err := s.run(blockStatus(0, size), nil, wire.StatusOK)
			must(t, err)
			n, err := wire.CheckExtents(list, size)
			must(t, err)
			const hole = wire.ExtentHole | wire.ExtentZero
			if first := wire.ExtentAt(list, 0); n < 3 || first.Flags != hole || first.Length > 8<<20 {
				t.Errorf("%d extents, the first is %+v", n, first)
			}
			// Holes between single blocks: more extents than fit.
			if export == "file" {
				for i := range uint64(100) {
					must(t, s.writeInline(i<<17, make([]byte, 512)))
				}
				list, err = s.run(blockStatus(0, size), nil, wire.StatusOK)
				if len(list) != 512 || err != nil {
					t.Errorf("%d bytes of extents, %v", len(list), err)
				}
			}
			must(t, s.close())
		})
	}
}

// TestRefusedCommands: what the export refuses is answered, and the connection
// goes on.
func TestRefusedCommands(t *testing.T) {
	blocks := newGate(4096, 16<<20)
	close(blocks.pass)
	readOnly := disk(t, "ro")
	readOnly.ReadOnly = true
	r := newRig(t, target.Config{}, disk(t, "good"), disk(t, "bad"), readOnly, target.Export{Name: "blocks", Device: blocks})
	good := r.healthy(t, "good")
	const size = 16 << 20
	plain := func(op wire.Opcode, off uint64, n uint32) wire.Command {
		return wire.Command{Opcode: op, Offset: off, Length: n}
	}
	at := func(off uint64, n int) (wire.Command, []byte) {
		return inlineWrite(off, make([]byte, n)), make([]byte, n)
	}
	cases := map[string]struct {
		export  string
		cmd     func() (wire.Command, []byte)
		want    wire.Status
		outcome string
	}{
		"unknown opcode":          {"bad", func() (wire.Command, []byte) { return plain(0x3f, 1, 2), nil }, wire.StatusNotSupported, ""},
		"compare and write":       {"bad", func() (wire.Command, []byte) { return plain(wire.OpCompareWrite, 1, 2), nil }, wire.StatusNotSupported, ""},
		"prefetch beyond":         {"bad", func() (wire.Command, []byte) { return plain(wire.OpPrefetch, 16<<20, 4096), nil }, wire.StatusInvalid, ""},
		"block status beyond":     {"bad", func() (wire.Command, []byte) { return blockStatus(16<<20, 1), nil }, wire.StatusInvalid, ""},
		"block status of nothing": {"bad", func() (wire.Command, []byte) { return blockStatus(0, 0), nil }, wire.StatusInvalid, ""},
		"read beyond the end":     {"bad", func() (wire.Command, []byte) { return inlineRead(size-511, 512), nil }, wire.StatusInvalid, ""},
		"read at the last offset": {"bad", func() (wire.Command, []byte) { return inlineRead(math.MaxUint64-100, 512), nil }, wire.StatusInvalid, ""},
		"read of nothing":         {"bad", func() (wire.Command, []byte) { return inlineRead(0, 0), nil }, wire.StatusInvalid, ""},
		"write beyond the end":    {"bad", func() (wire.Command, []byte) { return at(size-511, 512) }, wire.StatusNoSpace, ""},
		"write at 2^63":           {"bad", func() (wire.Command, []byte) { return at(1<<63, 512) }, wire.StatusNoSpace, ""},
		"write that wraps":        {"bad", func() (wire.Command, []byte) { return at(math.MaxUint64-511, 512) }, wire.StatusNoSpace, ""},
		"write of nothing":        {"bad", func() (wire.Command, []byte) { return at(0, 0) }, wire.StatusInvalid, ""},
		"trim of 4 GiB":           {"bad", func() (wire.Command, []byte) { return plain(wire.OpTrim, 0, math.MaxUint32), nil }, wire.StatusInvalid, ""},
		"zeroes of 4 GiB":         {"bad", func() (wire.Command, []byte) { return plain(wire.OpWriteZeroes, 4096, math.MaxUint32), nil }, wire.StatusNoSpace, ""},
		"trim that wraps":         {"bad", func() (wire.Command, []byte) { return plain(wire.OpTrim, math.MaxUint64, math.MaxUint32), nil }, wire.StatusInvalid, ""},
		"write to read-only":      {"ro", func() (wire.Command, []byte) { return at(0, 512) }, wire.StatusPermission, ""},
		"trim of read-only":       {"ro", func() (wire.Command, []byte) { return plain(wire.OpTrim, 0, 512), nil }, wire.StatusPermission, ""},
		"unaligned offset":        {"blocks", func() (wire.Command, []byte) { return inlineRead(512, 4096), nil }, wire.StatusInvalid, ""},
		"unaligned length":        {"blocks", func() (wire.Command, []byte) { return at(4096, 512) }, wire.StatusInvalid, ""},
		"flags of other opcodes": {"bad", func() (wire.Command, []byte) {
			return wire.Command{Opcode: wire.OpTrim, Flags: wire.FlagFastZero, Length: 512}, nil
		}, wire.StatusInvalid, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := r.state()
			s := r.attachMode(t, c.export, map[bool]wire.OpenMode{true: wire.OpenReadOnly, false: wire.OpenReadWrite}[c.export == "ro"])
			cmd, payload := c.cmd()
			if _, err := s.run(cmd, payload, c.want); err != nil {
				t.Error(err)
			}
			if _, err := s.readInline(0, 4096); err != nil {
				t.Errorf("after that: %v", err)
			}
			must(t, s.close())
			r.reaches(base)
			good.progresses()
		})
	}
}

// TestUnopenedHandles are answered.
func TestUnopenedHandles(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "bad"))
	s := r.attach(t, "bad")
	for _, handle := range []uint16{1, 4095, 4096, math.MaxUint16} {
		s.export.Export = handle
		if _, err := s.run(inlineRead(0, 512), nil, wire.StatusNotFound); err != nil {
			t.Errorf("handle %d: %v", handle, err)
		}
	}
	s.export.Export = 0
	if _, err := s.readInline(0, 512); err != nil {
		t.Error(err)
	}
}

// TestMoreCommandsThanCredits: a slot takes one command at a time, and a peer
// that overruns the receives of the target loses the connection.
func TestMoreCommandsThanCredits(t *testing.T) {
	gates := map[string]*gate{"slot in use": newGate(1, 16<<20), "all receives": newGate(1, 16<<20)}
	exports := []target.Export{disk(t, "good")}
	for name, g := range gates {
		exports = append(exports, target.Export{Name: name, Device: g})
	}
	r := newRig(t, target.Config{Depth: 4}, exports...)
	good := r.healthy(t, "good")
	for name, flood := range map[string]func(*session) error{
		"slot in use": func(s *session) error {
			return errors.Join(s.io.command(inlineRead(0, 512), nil), s.io.command(inlineRead(0, 512), nil))
		},
		"all receives": func(s *session) error {
			for i := range 64 {
				cmd := inlineWrite(0, make([]byte, 512))
				cmd.Slot = uint16(i % 4)
				if err := s.io.command(cmd, make([]byte, 512)); err != nil {
					return nil // lost already
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := r.state()
			s := r.attach(t, name)
			must(t, flood(s))
			if _, err := s.io.ends(); err != nil {
				t.Fatal(err)
			}
			good.progresses()
			close(gates[name].pass)
			must(t, s.close())
			r.reaches(base)
		})
	}
}
