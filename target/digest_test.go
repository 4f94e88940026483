package target_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// attachDigest is attach in a session with data digests.
func (r *rig) attachDigest(t testing.TB, export string) *session {
	t.Helper()
	s := &session{id: newID(), control: r.peer(t), io: r.peer(t)}
	for _, p := range []*peer{s.control, s.io} {
		q := p.loginRequest(wire.RoleControl, s.id, 0)
		if p == s.io {
			q = p.loginRequest(wire.RoleIO, s.id, 1)
		}
		q.Digest = wire.DigestCRC32C
		must(t, p.login(q))
		if p.answer.Digest != wire.DigestCRC32C || p.answer.Features&wire.FeatureImmediate != 0 {
			t.Fatalf("login answered %+v", p.answer)
		}
		if p == s.control {
			must(t, s.open(1, export, wire.OpenReadWrite, &s.export))
		}
	}
	return s
}

// digested is a command with its digest, of a payload.
func digested(cmd wire.Command, payload []byte) wire.Command {
	cmd.Flags |= wire.FlagDataDigest
	if cmd.Opcode == wire.OpWrite {
		cmd.DataCRC = wire.DataCRC(payload)
	}
	return cmd
}

// reply runs a command and returns its reply and the inline payload: no
// immediate answers in a session with digests.
func (s *session) reply(cmd wire.Command, payload []byte) (r wire.Reply, data []byte, err error) {
	cmd.Export = s.export.Export
	if err = s.io.command(cmd, payload); err != nil {
		return r, nil, err
	}
	e, err := s.io.receive()
	switch {
	case err != nil:
	case e.msg == nil:
		err = errors.New("an immediate answers")
	default:
		if err = r.Decode(e.msg); err == nil {
			data = r.Inline(e.msg)
		}
	}
	return r, data, err
}

// TestDigestRules: in a session with data digests, the replies have those of
// what they bring, and a command with payload but without one costs the
// connection.
func TestDigestRules(t *testing.T) {
	r := newRig(t, target.Config{Depth: 4}, disk(t, "memory"), fileDisk(t, "file"))
	for _, export := range []string{"memory", "file"} {
		s := r.attachDigest(t, export)
		m, err := s.io.expose(128<<10, readWrite)
		must(t, err)
		small, large := bytes.Repeat([]byte{1, 2}, 2048), m.Bytes()[:64<<10]
		copy(large, bytes.Repeat([]byte{3, 4, 5}, len(large)/3+1))
		status := wire.Command{Opcode: wire.OpBlockStatus, Mode: wire.ModeInline, Length: 64 << 10}
		for what, x := range map[string]struct {
			cmd     wire.Command
			payload []byte
			reads   func(data []byte) []byte // what the digest is of
		}{
			"inline write": {digested(inlineWrite(0, small), small), small, nil},
			"inline read":  {digested(inlineRead(0, 4096), nil), nil, func(data []byte) []byte { return data }},
			"write":        {digested(transfer(wire.OpWrite, 1<<20, m.segment(0, 64<<10)), large), nil, nil},
			"read": {digested(transfer(wire.OpRead, 1<<20, m.segment(64<<10, 32<<10), m.segment(96<<10, 32<<10)), nil), nil, func([]byte) []byte {
				return m.Bytes()[64<<10:]
			}},
			"block status": {digested(status, nil), nil, func(data []byte) []byte { return data }},
			"flush":        {wire.Command{Opcode: wire.OpFlush}, nil, nil},
			"trim":         {wire.Command{Opcode: wire.OpTrim, Length: 4096, Offset: 2 << 20}, nil, nil},
		} {
			a, data, err := s.reply(x.cmd, x.payload)
			if err != nil || a.Status != wire.StatusOK || (a.Flags&wire.ReplyDataDigest != 0) != (x.reads != nil) {
				t.Fatalf("%s, %s: %v, reply %+v", export, what, err, a)
			}
			if x.reads != nil && wire.DataCRC(x.reads(data)) != a.DataCRC {
				t.Errorf("%s, %s: the digest is another", export, what)
			}
		}
		index := uint16(1)
		for what, cmd := range map[string]wire.Command{
			"inline write": inlineWrite(0, small), "inline read": inlineRead(0, 4096), "block status": status,
			"write": transfer(wire.OpWrite, 0, wire.Segment{Addr: 1, Handle: 1, Length: 8192}),
			"read":  transfer(wire.OpRead, 0, wire.Segment{Addr: 1, Handle: 1, Length: 8192}),
		} {
			p := r.peer(t)
			index++ // the target may hold a closed one briefly
			q := p.loginRequest(wire.RoleIO, s.id, index)
			q.Digest = wire.DigestCRC32C
			must(t, p.login(q))
			must(t, p.command(cmd, make([]byte, cmd.InlineLength)))
			if e, err := p.receive(); !errors.Is(err, errLost) {
				t.Errorf("%s, %s without a digest: answered by %d bytes, %v", export, what, len(e.msg), err)
			}
			must(t, p.close())
		}
		must(t, s.close())
	}
}

// TestDigestRefusesWrites: the disk gets nothing of a Write whose payload does
// not fit its digest, and the connection goes on.
func TestDigestRefusesWrites(t *testing.T) {
	r := newRig(t, target.Config{Depth: 4}, disk(t, "memory"), fileDisk(t, "file"))
	for i, export := range []string{"memory", "file"} {
		s := r.attachDigest(t, export)
		m, err := s.io.expose(64<<10, readWrite)
		must(t, err)
		data := m.Bytes()
		for k := range data {
			data[k] = byte(k >> 4)
		}
		first, crc := bytes.Clone(data), wire.DataCRC(data)
		write, small := transfer(wire.OpWrite, 0, m.segment(0, len(data))), inlineWrite(0, data[:4096])
		run := func(cmd wire.Command, payload []byte, crc uint32, want wire.Status) {
			t.Helper()
			cmd.Flags, cmd.DataCRC = wire.FlagDataDigest, crc
			if a, _, err := s.reply(cmd, payload); err != nil || a.Status != want || a.Flags != 0 {
				t.Fatalf("%s: %v, %v, not %v", export, err, a.Status, want)
			}
		}
		run(write, nil, crc, wire.StatusOK)
		data[len(data)-1] ^= 1
		run(write, nil, crc, wire.StatusDigest)
		run(small, data[:4096], crc, wire.StatusDigest)
		clear(data)
		a, _, err := s.reply(digested(transfer(wire.OpRead, 0, m.segment(0, len(data))), nil), nil)
		if err != nil || !bytes.Equal(data, first) || a.DataCRC != crc {
			t.Errorf("%s: %v, reply %+v, equal %v", export, err, a, bytes.Equal(data, first))
		}
		must(t, s.close())
		waitFor(t, "the counts", func() bool { return r.server.Status().Stats.DigestErrors == uint64(2*(i+1)) })
	}
	if n := strings.Count(r.log.String(), "event=payload_corrupt"); n == 0 {
		t.Errorf("log: %s", r.log)
	}
}

// TestDigestRequired: a target that demands digests refuses logins without, for
// a session or a further connection, and says what to do.
func TestDigestRequired(t *testing.T) {
	r := newRig(t, target.Config{RequireDigest: true}, disk(t, "a"))
	s := r.attachDigest(t, "a")
	for role, index := range map[wire.Role]uint16{wire.RoleControl: 0, wire.RoleIO: 2, wire.RoleDiscover: 0} {
		p, id := r.peer(t), newID()
		if role == wire.RoleIO {
			id = s.id
		}
		q := p.loginRequest(role, id, index)
		q.Digest = wire.Digest(1 << 7) // one that no target knows
		err := p.login(q)
		if role == wire.RoleDiscover {
			must(t, err)
			continue
		}
		if p.answer.Reason != wire.ReasonDigest || !strings.Contains(fmt.Sprint(err), "--data-digest") {
			t.Errorf("role %v: %v", role, err)
		}
		if n, err := p.ends(); n != 0 || err != nil {
			t.Errorf("role %v: %d answers, %v", role, n, err)
		}
	}
	must(t, errors.Join(s.keepalive(), s.close()))
}
