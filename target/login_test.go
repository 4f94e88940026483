package target_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// TestRefusedLogins: a refused peer gets the reason, loses the connection and
// leaves no state.
func TestRefusedLogins(t *testing.T) {
	r := newRig(t, target.Config{Depth: 1024}, disk(t, "good"), disk(t, "other"))
	good := r.healthy(t, "good")
	other := r.attach(t, "other")
	base := r.state()
	fresh, known := newID(), other.id
	cases := map[string]struct {
		role   wire.Role
		id     [16]byte
		index  uint16
		change func(*wire.LoginRequest)
		want   wire.LoginReason
		text   string
	}{
		"version of tomorrow": {wire.RoleControl, fresh, 0, func(q *wire.LoginRequest) { q.MinVersion, q.MaxVersion = 9, 9 }, wire.ReasonVersion, "upgrade the older one"},
		"reserved role":       {3, known, 3, func(q *wire.LoginRequest) { q.Conns = 2 }, wire.ReasonRole, "not served"},
		"session exists":      {wire.RoleControl, known, 0, nil, wire.ReasonSession, "exists"},
		"no such session":     {wire.RoleIO, fresh, 2, nil, wire.ReasonSession, "no such session"},
		"wrong nonce":         {wire.RoleIO, known, 2, func(q *wire.LoginRequest) { q.Nonce++ }, wire.ReasonGeneration, "another process"},
		"wrong generation":    {wire.RoleIO, known, 2, func(q *wire.LoginRequest) { q.SessionGen++ }, wire.ReasonGeneration, "another process"},
		"wrong epoch":         {wire.RoleIO, known, 2, func(q *wire.LoginRequest) { q.PathEpoch++ }, wire.ReasonEpoch, "not at epoch 2"},
		"index in use":        {wire.RoleIO, known, 1, nil, wire.ReasonConn, "connection 1 exists"},
		"index not granted":   {wire.RoleIO, known, 64, nil, wire.ReasonConn, "63"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := r.peer(t)
			q := p.loginRequest(c.role, c.id, c.index)
			if c.change != nil {
				c.change(q)
			}
			var a wire.LoginResponse
			must(t, p.ask(q, &a))
			if a.ID != q.ID || a.Status == wire.StatusOK || a.Reason != c.want || !strings.Contains(a.Text, c.text) {
				t.Errorf("answer %d: %v, %v, %q, want %v and %q", a.ID, a.Status, a.Reason, a.Text, c.want, c.text)
			}
			if _, err := p.ends(); err != nil {
				t.Error(err)
			}
			r.reaches(base)
			good.progresses()
		})
	}
}

// TestConnectionsThatNeverLogIn: the first message is a login, or the
// connection ends without an answer.
func TestConnectionsThatNeverLogIn(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"))
	good := r.healthy(t, "good")
	base := r.state()
	encode := func(m wire.Message) func(*peer) error {
		return func(p *peer) error {
			b := make([]byte, wire.MaxControlSize)
			n, err := m.Encode(b)
			if err != nil {
				return err
			}
			return p.send(b[:n])
		}
	}
	cases := map[string]func(*peer) error{
		"nothing but an end": func(p *peer) error { p.c.Disconnect(); p.lost = true; return nil },
		"keepalive":          encode(&wire.KeepAlive{ID: 1, PathEpoch: 1}),
		"keepalive in four bytes": func(p *peer) error {
			return p.sendImmediate(wire.MakeImmediate(wire.ImmKeepAlive, 0, 0, 0))
		},
		"open":           encode(&wire.OpenRequest{ID: 1, OpenID: 1, Mode: wire.OpenReadOnly}),
		"logout":         encode(&wire.Logout{ID: 1}),
		"discover":       encode(&wire.DiscoverRequest{ID: 1}),
		"login response": encode(&wire.LoginResponse{ID: 1, Version: wire.Version}),
		"command":        func(p *peer) error { return p.command(inlineRead(0, 512), nil) },
		"one byte":       func(p *peer) error { return p.send([]byte{byte(wire.OpLogin)}) },
		"empty message":  func(p *peer) error { return p.send(nil) },
		"zeroes":         func(p *peer) error { return p.send(make([]byte, 192)) },
		"torn login": func(p *peer) error {
			b := make([]byte, wire.MaxControlSize)
			n, err := p.loginRequest(wire.RoleControl, newID(), 0).Encode(b)
			return errors.Join(err, p.send(b[:n-1]))
		},
		"longer than any message": func(p *peer) error { return p.send(make([]byte, peerHead)) },
	}
	for name, act := range cases {
		t.Run(name, func(t *testing.T) {
			p := r.peer(t)
			must(t, act(p))
			if n, err := p.ends(); err != nil || n != 0 {
				t.Errorf("the target said %d things before it ended the connection: %v", n, err)
			}
			r.reaches(base)
			good.progresses()
		})
	}
}

// TestLoginTwice ends the connection and, as it is the control connection, the
// session.
func TestLoginTwice(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"), disk(t, "bad"))
	good := r.healthy(t, "good")
	base := r.state()
	bad := r.attach(t, "bad")
	b := make([]byte, wire.MaxControlSize)
	n, err := bad.control.loginRequest(wire.RoleControl, bad.id, 0).Encode(b)
	must(t, errors.Join(err, bad.control.send(b[:n])))
	for _, p := range []*peer{bad.control, bad.io} {
		if _, err := p.ends(); err != nil {
			t.Error(err)
		}
	}
	r.reaches(base)
	good.progresses()
}

// TestLoginTimeout: a connection that says nothing does not stay.
func TestLoginTimeout(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"))
	base := r.state()
	p := r.peer(t)
	if _, err := p.ends(); err != nil {
		t.Fatal(err)
	}
	r.reaches(base)
	if text := r.log.String(); !strings.Contains(text, "no login arrived in time") {
		t.Errorf("the log does not say why:\n%s", text)
	}
}

// rejection returns the reason of a target that rejected a connection.
func rejection(err error) byte {
	if r := new(via.RejectError); errors.As(err, &r) {
		return r.Reason
	}
	return 0
}

// TestConnectionLimit: connections above the limit are refused at once, and a
// place is free again when one ended.
func TestConnectionLimit(t *testing.T) {
	r := newRig(t, target.Config{MaxConnections: 3}, disk(t, "good"))
	good := r.healthy(t, "good")
	base := r.state()
	p := r.peer(t)
	const refused = 30
	for range refused {
		if q, err := connect(r.nic, r.host, nil); rejection(err) != wire.RejectFull {
			t.Fatalf("connection above the limit: %v, %v", q, err)
		}
	}
	if got := r.server.Status(); got.Refused != refused || got.Connections != 3 || got.Limit != 3 {
		t.Errorf("%d connections refused, want %d; %d of %d are in use", got.Refused, refused, got.Connections, got.Limit)
	}
	if lines := strings.Count(r.log.String(), "connection refused"); lines == 0 || lines == refused {
		t.Errorf("%d lines about %d refusals within a moment, want few", lines, refused)
	}
	must(t, p.close())
	r.reaches(base)
	good.progresses()
	must(t, r.peer(t).close())
}

// TestSmallTransfers: what a connection carries at a time bounds what is
// negotiated, and one that carries next to nothing is refused.
func TestSmallTransfers(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"))
	small := func(n uint32) *peer {
		p, err := connect(r.nic, r.host, func(a *via.ViAttributes) { a.MaxTransferSize = n })
		must(t, err)
		t.Cleanup(func() { must(t, p.close()) })
		return p
	}
	p := small(64 << 10)
	must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	if p.answer.MaxIO != 64<<10 {
		t.Errorf("commands of %d bytes on a connection that carries 65536", p.answer.MaxIO)
	}
	_, err := connect(r.nic, r.host, func(a *via.ViAttributes) { a.MaxTransferSize = 16 << 10 })
	if !errors.Is(err, via.ErrReject) {
		t.Errorf("a connection that carries 16 KiB at a time: %v", err)
	}
}

// TestSilence: an initiator whose control connection is silent is dead; one
// whose I/O connections are idle is not.
func TestSilence(t *testing.T) {
	r := newRig(t, target.Config{KeepAlive: 700 * time.Millisecond}, disk(t, "good"), disk(t, "other"))
	good := r.healthy(t, "good")
	idle := r.join(t, good.s, 2) // says nothing from now on
	base := r.state()
	dead := r.attach(t, "other")
	for _, p := range []*peer{dead.control, dead.io} {
		if _, err := p.ends(); err != nil {
			t.Error(err)
		}
	}
	r.reaches(base)
	if text := r.log.String(); !strings.Contains(text, "silent") {
		t.Errorf("the log does not say why:\n%s", text)
	}
	cmd := inlineRead(0, 512)
	cmd.Export = good.s.export.Export
	must(t, idle.command(cmd, nil))
	if status, _, err := idle.status(); err != nil || status != wire.StatusOK {
		t.Errorf("command on a connection that was idle for long: %v, %v", status, err)
	}
	good.progresses()
}

// TestKeepaliveIsGranted: an initiator learns the interval of the keepalives
// when it logs in.
func TestKeepaliveIsGranted(t *testing.T) {
	r := newRig(t, target.Config{KeepAlive: 250 * time.Millisecond}, disk(t, "good"))
	if got := r.attach(t, "good").control.answer.KeepAliveMillis; got != 250 {
		t.Errorf("the initiator hears of %d ms", got)
	}
}

// TestManySessions: sessions come and go without a trace.
func TestManySessions(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"), disk(t, "bad"))
	good := r.healthy(t, "good")
	base := r.state()
	for i := range 50 {
		s := r.attach(t, "bad")
		if _, err := s.run(inlineRead(0, 512), nil, wire.StatusOK); err != nil {
			t.Fatal(fmt.Errorf("session %d: %w", i, err))
		}
		must(t, s.close())
		r.reaches(base)
	}
	good.progresses()
}
