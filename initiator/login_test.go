package initiator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// TestFaultyLogins: whatever a target makes of a login, at the control
// connection or at that of a queue, the caller learns what, and nothing is
// left.
func TestFaultyLogins(t *testing.T) {
	type login func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool
	with := func(change func(*wire.LoginResponse)) login {
		return func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			change(a)
			e.sendControl(a)
			return true
		}
	}
	refuse := func(status wire.Status, reason wire.LoginReason, text string) login {
		return with(func(a *wire.LoginResponse) { a.Status, a.Reason, a.Text = status, reason, text })
	}
	silent := func(*end, *wire.LoginRequest, *wire.LoginResponse) bool { return true }
	cases := map[string]struct {
		login login
		text  string
		errno error
	}{
		"refused":          {refuse(wire.StatusBusy, wire.ReasonDraining, "come back tomorrow"), "come back tomorrow", syscall.EBUSY},
		"refused for ever": {refuse(wire.StatusPermission, wire.ReasonHost, "not you"), "host", syscall.EPERM},
		"version":          {refuse(wire.StatusVersion, wire.ReasonVersion, "too old"), "too old", syscall.EPROTONOSUPPORT},
		"index taken":      {refuse(wire.StatusStale, wire.ReasonConn, "taken"), "taken", syscall.ESTALE},
		"proof wanted":     {refuse(wire.StatusContinue, 0, ""), "proof of identity", nil},
		"another version":  {with(func(a *wire.LoginResponse) { a.Version = wire.Version + 1 }), "version", wire.ErrVersion},
		"another ID":       {with(func(a *wire.LoginResponse) { a.ID++ }), "another command", nil},
		"another epoch":    {with(func(a *wire.LoginResponse) { a.PathEpoch++ }), "another command", nil},
		"another message": {func(e *end, q *wire.LoginRequest, _ *wire.LoginResponse) bool {
			e.sendControl(&wire.OpenResponse{ID: q.ID, PathEpoch: 1, MinimumBlock: 1, PreferredBlock: 1})
			return true
		}, "another kind of message", wire.ErrMalformed},
		"digest unasked": {with(func(a *wire.LoginResponse) { a.Digest = wire.DigestCRC32C }), "not offered", nil},
		"not understood": {func(e *end, q *wire.LoginRequest, _ *wire.LoginResponse) bool {
			e.sendControl(&wire.Refused{ID: q.ID, PathEpoch: 1, Status: wire.StatusNotSupported, Request: wire.OpLogin, Text: "what"})
			return true
		}, "what", syscall.ENOTSUP},
		"garbage": {
			func(e *end, _ *wire.LoginRequest, _ *wire.LoginResponse) bool { e.send(make([]byte, 300)); return true },
			"answer", wire.ErrCorrupt,
		},
		"one byte":  {func(e *end, _ *wire.LoginRequest, _ *wire.LoginResponse) bool { e.send([]byte{0xd0}); return true }, "1 bytes", nil},
		"immediate": {func(e *end, _ *wire.LoginRequest, _ *wire.LoginResponse) bool { e.immediate(0); return true }, "immediate", nil},
		"too long": {
			func(e *end, _ *wire.LoginRequest, _ *wire.LoginResponse) bool {
				e.send(make([]byte, 9000))
				return true
			},
			"length error", nil,
		},
		"the end": {func(*end, *wire.LoginRequest, *wire.LoginResponse) bool { return false }, "closed the connection", nil},
		"silence": {silent, "deadline", context.DeadlineExceeded},
	}
	queues := map[string]struct {
		login login
		text  string
		errno error
	}{
		"no credits":     {with(func(a *wire.LoginResponse) { a.Credits = 0 }), "0 credits", nil},
		"gifts":          {with(func(a *wire.LoginResponse) { a.Credits, a.SlotCount = 1024, 1024 }), "1024 credits", nil},
		"few slots":      {with(func(a *wire.LoginResponse) { a.SlotCount-- }), "3 slots", nil},
		"tiny commands":  {with(func(a *wire.LoginResponse) { a.MaxIO = 4095 }), "4095 bytes", nil},
		"no rdma":        {with(func(a *wire.LoginResponse) { a.DataModes = wire.ModesInline }), "rdma", nil},
		"slots too high": {with(func(a *wire.LoginResponse) { a.SlotBase = 65535 }), "beyond the last", wire.ErrMalformed},
	}
	check := func(t *testing.T, err error, text string, errno error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) || errno != nil && !errors.Is(err, errno) {
			t.Errorf("error %v, want %q and %v", err, text, errno)
		}
	}
	for name, c := range cases {
		t.Run("control/"+name, func(t *testing.T) {
			s := newStage(t, play{login: c.login})
			cfg := s.config()
			if name == "silence" {
				cfg.Timeout = time.Second
			}
			_, err := initiator.Dial(context.Background(), cfg)
			check(t, err, c.text, c.errno)
			_, err = initiator.Discover(context.Background(), cfg)
			check(t, err, c.text, c.errno)
		})
		queues[name] = c
	}
	for name, c := range queues {
		t.Run("queue/"+name, func(t *testing.T) {
			s := newStage(t, play{login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
				if q.Role == wire.RoleIO {
					return c.login(e, q, a)
				}
				e.sendControl(a)
				return true
			}})
			cfg := s.config()
			if name == "silence" {
				cfg.Timeout = time.Second
			}
			d, err := initiator.Dial(context.Background(), cfg)
			must(t, err)
			_, err = d.NewQueue(4)
			check(t, err, c.text, c.errno)
			if err := d.Err(); err != nil {
				t.Errorf("the session ended: %v", err)
			}
			must(t, d.Close())
		})
	}
}

// TestIndexInUse: a queue takes another index while the target has not released
// one yet.
func TestIndexInUse(t *testing.T) {
	var tried atomic.Int32
	s := newStage(t, play{login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
		if q.Role == wire.RoleIO && tried.Add(1) < 3 {
			a.Status, a.Reason, a.Text = wire.StatusStale, wire.ReasonConn, "connection exists"
		}
		e.sendControl(a)
		return true
	}})
	open(t, s.dial(t), 4)
	if tried.Load() != 3 {
		t.Errorf("%d logins, want 3", tried.Load())
	}
}

// TestFaultyOpens: the same for the opening of the export.
func TestFaultyOpens(t *testing.T) {
	response := func(change func(*wire.OpenResponse)) func(*end, wire.Opcode, []byte) bool {
		return func(e *end, op wire.Opcode, msg []byte) bool {
			h, _ := wire.PeekControl(msg)
			if op != wire.OpOpen {
				return e.obey(op, h, msg)
			}
			a := wire.OpenResponse{ID: h.ID, PathEpoch: 1, Size: 1 << 20, MinimumBlock: 1, PreferredBlock: 4096}
			change(&a)
			e.sendControl(&a)
			return true
		}
	}
	only := func(do func(e *end, h wire.ControlHeader) bool) func(*end, wire.Opcode, []byte) bool {
		return func(e *end, op wire.Opcode, msg []byte) bool {
			h, _ := wire.PeekControl(msg)
			if op != wire.OpOpen {
				return e.obey(op, h, msg)
			}
			return do(e, h)
		}
	}
	cases := map[string]struct {
		control func(*end, wire.Opcode, []byte) bool
		text    string
		errno   error
	}{
		"no such export": {
			response(func(a *wire.OpenResponse) { a.Status, a.Reason = wire.StatusNotFound, "no export is named x" }),
			"no export is named x", syscall.ENOENT,
		},
		"busy":          {response(func(a *wire.OpenResponse) { a.Status, a.Reason = wire.StatusBusy, "in use" }), "in use", syscall.EBUSY},
		"odd blocks":    {response(func(a *wire.OpenResponse) { a.MinimumBlock = 3 }), "block sizes", wire.ErrMalformed},
		"endless":       {response(func(a *wire.OpenResponse) { a.Size = 1 << 63 }), "larger", wire.ErrLimit},
		"another ID":    {response(func(a *wire.OpenResponse) { a.ID++ }), "unexpected open-response", nil},
		"another epoch": {response(func(a *wire.OpenResponse) { a.PathEpoch++ }), "another command", nil},
		"another kind": {
			only(func(e *end, h wire.ControlHeader) bool {
				e.sendControl(&wire.CloseResponse{ID: h.ID, PathEpoch: 1})
				return true
			}),
			"another kind", wire.ErrMalformed,
		},
		"not understood": {only(func(e *end, h wire.ControlHeader) bool {
			e.sendControl(&wire.Refused{ID: h.ID, PathEpoch: 1, Status: wire.StatusNotSupported, Request: wire.OpOpen, Text: "open what"})
			return true
		}), "open what", syscall.ENOTSUP},
		"garbage":   {only(func(e *end, h wire.ControlHeader) bool { e.send(make([]byte, 100)); return true }), "control message", wire.ErrCorrupt},
		"immediate": {only(func(e *end, h wire.ControlHeader) bool { e.immediate(0); return true }), "immediate", nil},
		"the end":   {only(func(*end, wire.ControlHeader) bool { return false }), "closed the connection", nil},
		"silence":   {only(func(*end, wire.ControlHeader) bool { return true }), "deadline", context.DeadlineExceeded},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, play{control: c.control})
			cfg := s.config()
			if name == "silence" {
				cfg.Timeout = 50 * time.Millisecond
			}
			_, err := initiator.Dial(context.Background(), cfg)
			if err == nil || !strings.Contains(err.Error(), c.text) || c.errno != nil && !errors.Is(err, c.errno) {
				t.Errorf("error %v, want %q and %v", err, c.text, c.errno)
			}
		})
	}
}

// TestConnectWithoutListener: the errors of the fabric come through.
func TestConnectWithoutListener(t *testing.T) {
	nic := openNIC(t)
	cfg := initiator.Config{NIC: nic, Host: t.TempDir() + "/absent.sock"}
	if _, err := initiator.Dial(context.Background(), cfg); !errors.Is(err, via.ErrNotReachable) {
		t.Error(err)
	}
	if _, err := initiator.Discover(context.Background(), cfg); !errors.Is(err, via.ErrNotReachable) {
		t.Error(err)
	}
	for _, bad := range []initiator.Config{
		{}, {NIC: nic}, {NIC: nic, Host: "x", Depth: 1025}, {NIC: nic, Host: "x", MaxIO: -1}, {NIC: nic, Host: "x", InlineMax: 1<<20 + 1},
	} {
		if _, err := initiator.Dial(context.Background(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	must(t, nic.Close())
}

// TestDiscoverPages: a list of pages is put together, from its beginning if it
// changes meanwhile, and has an end.
func TestDiscoverPages(t *testing.T) {
	pages := func(next func(cursor uint32, asked int) (generation, next uint32)) play {
		asked := 0
		return play{control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, _ := wire.PeekControl(msg)
			var q wire.DiscoverRequest
			if op != wire.OpDiscover || q.Decode(msg) != nil {
				return e.obey(op, h, msg)
			}
			asked++
			a := wire.DiscoverResponse{ID: h.ID, PathEpoch: 1}
			a.Generation, a.Next = next(q.Cursor, asked)
			a.Entries = []wire.ExportEntry{
				{Kind: wire.EntryExport, Name: fmt.Sprintf("export %d of list %d", q.Cursor, a.Generation), Size: 1},
				{Kind: wire.EntryReferral, Name: "via+roce://elsewhere"},
			}
			e.sendControl(&a)
			return true
		}}
	}
	cases := map[string]struct {
		next func(cursor uint32, asked int) (uint32, uint32)
		want string
		text string
	}{
		"one page":  {func(uint32, int) (uint32, uint32) { return 1, 0 }, "export 0 of list 1", ""},
		"two pages": {func(c uint32, _ int) (uint32, uint32) { return 1, 1 - c }, "export 0 of list 1, export 1 of list 1", ""},
		"backwards": {func(uint32, int) (uint32, uint32) { return 1, 1 }, "export 0 of list 1, export 1 of list 1", ""},
		"another list": {
			func(c uint32, asked int) (uint32, uint32) { return uint32(min(asked, 2)), 1 - c },
			"export 0 of list 2, export 1 of list 2", "",
		},
		"for ever":   {func(c uint32, _ int) (uint32, uint32) { return 1, c + 1 }, "", "more than 4096 pages"},
		"never same": {func(c uint32, asked int) (uint32, uint32) { return uint32(asked), c + 1 }, "", "more than 4096 pages"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, pages(c.next))
			list, err := initiator.Discover(context.Background(), s.config())
			if c.text != "" {
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("error %v, want %q", err, c.text)
				}
				return
			}
			must(t, err)
			var names []string
			for _, x := range list {
				names = append(names, x.Name)
			}
			if got := strings.Join(names, ", "); got != c.want {
				t.Errorf("list %q, want %q", got, c.want)
			}
		})
	}
}
