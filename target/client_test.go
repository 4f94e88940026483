package target_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/wire"
)

// session is a peer's control connection with an open export, and one I/O
// connection.
type session struct {
	id      [16]byte
	control *peer
	io      *peer
	export  wire.OpenResponse
}

func newID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

// attach logs in and opens an export for writing.
func (r *rig) attach(t testing.TB, export string) *session {
	t.Helper()
	s := &session{id: newID(), control: r.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	must(t, s.open(1, export, wire.OpenReadWrite, &s.export))
	s.io = r.join(t, s, 1)
	return s
}

// join logs another I/O connection of the session in.
func (r *rig) join(t testing.TB, s *session, index uint16) *peer {
	t.Helper()
	p := r.peer(t)
	must(t, p.login(p.loginRequest(wire.RoleIO, s.id, index)))
	return p
}

// open opens an export.
func (s *session) open(id uint32, name string, mode wire.OpenMode, a *wire.OpenResponse) error {
	q := wire.OpenRequest{ID: 2, PathEpoch: s.control.epoch, OpenID: id, Mode: mode, Name: name}
	if err := s.control.ask(&q, a); err != nil {
		return err
	}
	if a.Status != wire.StatusOK {
		return fmt.Errorf("open %q: %v: %s", name, a.Status, a.Reason)
	}
	return nil
}

// close ends both connections without a logout.
func (s *session) close() error { return errors.Join(s.io.close(), s.control.close()) }

// run sends a command and expects a status.
func (s *session) run(cmd wire.Command, payload []byte, want wire.Status) ([]byte, error) {
	cmd.Export = s.export.Export
	if err := s.io.command(cmd, payload); err != nil {
		return nil, err
	}
	got, data, err := s.io.status()
	if err == nil && got != want {
		err = fmt.Errorf("%v of %d bytes at %d: %v, not %v", cmd.Opcode, cmd.Length, cmd.Offset, got, want)
	}
	return data, err
}

// writeInline and readInline move data inside messages.
func (s *session) writeInline(off uint64, data []byte) error {
	_, err := s.run(inlineWrite(off, data), data, wire.StatusOK)
	return err
}

func inlineWrite(off uint64, data []byte) wire.Command {
	return wire.Command{
		Opcode: wire.OpWrite, Mode: wire.ModeInline, Offset: off,
		Length: uint32(len(data)), InlineLength: uint32(len(data)),
	}
}

func (s *session) readInline(off uint64, n int) ([]byte, error) {
	return s.run(inlineRead(off, n), nil, wire.StatusOK)
}

func inlineRead(off uint64, n int) wire.Command {
	return wire.Command{Opcode: wire.OpRead, Mode: wire.ModeInline, Offset: off, Length: uint32(n)}
}

// transfer is a Read or Write by RDMA.
func transfer(op wire.Opcode, off uint64, segments ...wire.Segment) wire.Command {
	cmd := wire.Command{Opcode: op, Mode: wire.ModePlace, Offset: off, NumSegments: uint8(len(segments))}
	if op == wire.OpWrite {
		cmd.Mode = wire.ModePull
	}
	for i, s := range segments {
		cmd.Segments[i] = s
		cmd.Length += s.Length
	}
	return cmd
}

// segment names a piece of exposed memory.
func (m exposed) segment(off, n int) wire.Segment {
	return wire.Segment{Addr: m.Addr() + uint64(off), Handle: m.Handle(), Length: uint32(n)}
}

// healthy is an initiator that keeps writing and reading while others
// misbehave.
type healthy struct {
	t      testing.TB
	s      *session
	memory exposed
	rounds atomic.Int64
	halt   atomic.Bool
	ended  chan error
}

// healthy attaches an export and starts to use it; it ends with the test and
// fails it if anything ever went wrong.
func (r *rig) healthy(t testing.TB, export string) *healthy {
	t.Helper()
	h := &healthy{t: t, s: r.attach(t, export), ended: make(chan error, 1)}
	var err error
	h.memory, err = h.s.io.expose(256<<10, readWrite)
	must(t, err)
	go func() { h.ended <- h.work() }()
	t.Cleanup(func() {
		h.halt.Store(true)
		must(t, <-h.ended)
	})
	return h
}

func (h *healthy) work() error {
	for !h.halt.Load() {
		if err := h.round(byte(h.rounds.Load())); err != nil {
			return fmt.Errorf("healthy initiator, round %d: %w", h.rounds.Load(), err)
		}
		h.rounds.Add(1)
		if err := h.keepalive(); err != nil {
			return fmt.Errorf("healthy initiator, keepalive: %w", err)
		}
	}
	return nil
}

// round writes and reads back, inside messages and by RDMA.
func (h *healthy) round(tag byte) error {
	small := bytes.Repeat([]byte{tag}, 4096)
	if err := h.s.writeInline(0, small); err != nil {
		return err
	}
	switch got, err := h.s.readInline(0, len(small)); {
	case err != nil:
		return err
	case !bytes.Equal(got, small):
		return errors.New("other data than written inside messages")
	}
	const half = 128 << 10
	out, in := h.memory.Bytes()[:half], h.memory.Bytes()[half:]
	for i := range out {
		out[i] = tag ^ byte(i>>8)
	}
	if _, err := h.s.run(transfer(wire.OpWrite, 1<<20, h.memory.segment(0, half)), nil, wire.StatusOK); err != nil {
		return err
	}
	if _, err := h.s.run(transfer(wire.OpRead, 1<<20, h.memory.segment(half, half)), nil, wire.StatusOK); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errors.New("other data than written by rdma")
	}
	return nil
}

// keepalive keeps the session alive.
func (h *healthy) keepalive() error {
	var ack wire.KeepAlive
	return h.s.control.ask(&wire.KeepAlive{PathEpoch: h.s.control.epoch}, &ack)
}

// progresses waits until the initiator has done whole rounds from now on.
func (h *healthy) progresses() {
	h.t.Helper()
	from := h.rounds.Load()
	waitFor(h.t, "the healthy initiator", func() bool {
		select {
		case err := <-h.ended:
			h.ended <- err
			h.t.Fatal(err)
		default:
		}
		return h.rounds.Load() >= from+2
	})
}
