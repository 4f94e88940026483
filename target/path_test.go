package target_test

import (
	"errors"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// joinPath adds a path to a session, with its control connection.
func (r *rig) joinPath(t testing.TB, s *session, path uint16, epoch uint32) *peer {
	t.Helper()
	p := r.peer(t)
	p.path, p.epoch = path, epoch
	must(t, p.login(p.loginRequest(wire.RoleControl, s.id, 0)))
	return p
}

// joinBy logs an I/O connection in that is of the path of a control connection.
func (r *rig) joinBy(t testing.TB, s *session, control *peer, index uint16) *peer {
	t.Helper()
	p := r.peer(t)
	p.path, p.epoch = control.path, control.epoch
	must(t, p.login(p.loginRequest(wire.RoleIO, s.id, index)))
	return p
}

// fence asks for a fence, once.
func (p *peer) fence(path uint16, epoch uint32) (a wire.FenceResponse, err error) {
	err = p.ask(&wire.Fence{ID: 9, PathEpoch: p.epoch, PathID: path, Epoch: epoch}, &a)
	if err == nil && (a.ID != 9 || a.PathID != path || a.Epoch != epoch || a.PathEpoch != p.epoch) {
		err = errors.New("the answer is of another fence")
	}
	return a, err
}

// fenced asks until the fence holds.
func (p *peer) fenced(t testing.TB, path uint16, epoch uint32) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		a, err := p.fence(path, epoch)
		must(t, err)
		switch {
		case a.Status == wire.StatusOK && a.Busy == 0:
			return
		case a.Status != wire.StatusBusy || a.Busy == 0:
			t.Fatalf("answer %+v", a)
		}
	}
	t.Fatal("the fence does not hold")
}

// refusedFor logs in and expects the reason of a refusal.
func (p *peer) refusedFor(t testing.TB, q *wire.LoginRequest, want wire.LoginReason) {
	t.Helper()
	var a wire.LoginResponse
	must(t, p.ask(q, &a))
	if a.Reason != want {
		t.Errorf("path %d, epoch %d: %v (%s), want %v", q.PathID, q.PathEpoch, a.Reason, a.Text, want)
	}
}

// TestFenceWaitsForTheDisk: a fence holds when the requests of the path have
// left the disk, and not before. Its connections have ended then, and none
// joins by the old epoch any more; the session goes on over the other path.
func TestFenceWaitsForTheDisk(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: g})
	s := r.attach(t, "disk")
	other := r.joinPath(t, s, 1, 2)
	data := make([]byte, 512)
	data[0] = 1
	must(t, s.io.command(inlineWrite(0, data), data))
	<-g.started // it is in the disk
	for range 3 {
		a, err := other.fence(0, 1)
		must(t, err)
		if a.Status != wire.StatusBusy || a.Busy == 0 {
			t.Fatalf("with a request in the disk: %+v", a)
		}
	}
	joins := r.peer(t) // it names the path that is being fenced
	joins.refusedFor(t, joins.loginRequest(wire.RoleIO, s.id, 2), wire.ReasonEpoch)
	again := r.peer(t)
	again.epoch = 3
	again.refusedFor(t, again.loginRequest(wire.RoleControl, s.id, 0), wire.ReasonFence)
	close(g.pass)
	other.fenced(t, 0, 1)
	for name, p := range map[string]*peer{"control": s.control, "I/O": s.io} {
		if n, err := p.ends(); n != 0 || err != nil {
			t.Errorf("%s connection of the fenced path: %d messages, %v", name, n, err)
		}
	}
	s.control, s.io = other, r.joinBy(t, s, other, 1) // the index is free
	got, err := s.readInline(0, 1)
	must(t, err)
	if got[0] != 1 {
		t.Errorf("the write of the fenced path is not on the disk when the fence holds")
	}
	other.fenced(t, 0, 1)                           // the same fence once more
	other.fenced(t, 0, 7)                           // and of epochs that were never there
	for _, epoch := range []uint32{1, 2, 3, 6, 7} { // 1 begins a session
		late := r.peer(t)
		late.epoch = epoch
		want := wire.ReasonEpoch
		if epoch == 1 {
			want = wire.ReasonSession
		}
		late.refusedFor(t, late.loginRequest(wire.RoleControl, s.id, 0), want)
	}
	back := r.joinPath(t, s, 0, 8)
	other.fenced(t, 0, 7) // of connections before it
	must(t, back.ask(&wire.KeepAlive{PathEpoch: 8}, new(wire.KeepAlive)))
	must(t, s.close())
}

// TestSessionOutlivesAPath: the session of two paths goes on with either of
// them, its export stays open, and it ends with the second.
func TestSessionOutlivesAPath(t *testing.T) {
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: openDevice(t, "memory:1MiB")})
	base := r.state()
	for _, lost := range []int{0, 1} {
		s := r.attach(t, "disk")
		paths := []*peer{s.control, r.joinPath(t, s, 1, 2)}
		io := []*peer{s.io, r.joinBy(t, s, paths[1], 2)}
		must(t, paths[lost].close())
		if _, err := io[lost].ends(); err != nil {
			t.Fatal(err)
		}
		s.control, s.io = paths[1-lost], io[1-lost]
		must(t, s.writeInline(0, make([]byte, 512)))
		a, err := s.control.fence(uint16(lost), uint32(lost+1))
		must(t, err)
		if a.Status == wire.StatusBusy {
			s.control.fenced(t, uint16(lost), uint32(lost+1))
		}
		must(t, s.close())
		r.reaches(base)
	}
}

// TestLogoutEndsEveryPath: the answer to a logout comes when no connection of
// the session but that of the logout is left.
func TestLogoutEndsEveryPath(t *testing.T) {
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: openDevice(t, "memory:1MiB")})
	logOutOver(t, r, r)
}

// logOutOver logs a session out over its second path, at a server.
func logOutOver(t *testing.T, r, second *rig) {
	t.Helper()
	s := r.attach(t, "disk")
	other := second.joinPath(t, s, 5, 2)
	second.joinBy(t, s, other, 2)
	var a wire.LogoutResponse
	must(t, other.ask(&wire.Logout{ID: 4, PathEpoch: 2}, &a))
	for _, p := range []*peer{s.control, s.io} {
		if n, err := p.ends(); n != 0 || err != nil {
			t.Errorf("%d messages, %v", n, err)
		}
	}
	again := r.attach(t, "disk") // the export is free
	must(t, again.close())
}

// TestRefusedPaths: a path joins by the session's identity, as a new one.
func TestRefusedPaths(t *testing.T) {
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: openDevice(t, "memory:1MiB")})
	s := r.attach(t, "disk")
	cases := map[string]struct {
		change func(*wire.LoginRequest)
		want   wire.LoginReason
	}{
		"no such session":       {func(q *wire.LoginRequest) { q.SessionID = newID() }, wire.ReasonSession},
		"wrong nonce":           {func(q *wire.LoginRequest) { q.Nonce++ }, wire.ReasonGeneration},
		"wrong generation":      {func(q *wire.LoginRequest) { q.SessionGen++ }, wire.ReasonGeneration},
		"too many paths":        {func(q *wire.LoginRequest) { q.PathID = 8 }, wire.ReasonConn},
		"no path with a number": {func(q *wire.LoginRequest) { q.PathID = 1<<16 - 1 }, wire.ReasonConn},
		"path of a live one":    {func(q *wire.LoginRequest) { q.PathID = 0 }, wire.ReasonFence},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := r.peer(t)
			p.path, p.epoch = 1, 2
			q := p.loginRequest(wire.RoleControl, s.id, 0)
			c.change(q)
			p.refusedFor(t, q, c.want)
		})
	}
	p := r.peer(t)
	q := p.loginRequest(wire.RoleIO, s.id, 2)
	q.PathID = 1 // which the session does not have
	p.refusedFor(t, q, wire.ReasonEpoch)
	must(t, s.close())
}

// TestRefusedFences: a fence of the own path, of none, or by force is refused
// and ends nothing.
func TestRefusedFences(t *testing.T) {
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: openDevice(t, "memory:1MiB")})
	s := r.attach(t, "disk")
	other := r.joinPath(t, s, 1, 2)
	for name, c := range map[string]struct {
		fence wire.Fence
		want  wire.Status
	}{
		"own path": {wire.Fence{PathID: 1, Epoch: 2}, wire.StatusInvalid},
		"no path":  {wire.Fence{PathID: 8, Epoch: 1}, wire.StatusInvalid},
		"page":     {wire.Fence{Epoch: 1, Cursor: 1}, wire.StatusInvalid},
		"force":    {wire.Fence{Epoch: 1, Force: true}, wire.StatusNotSupported},
	} {
		c.fence.ID, c.fence.PathEpoch = 3, 2
		var a wire.FenceResponse
		must(t, other.ask(&c.fence, &a))
		if a.Status != c.want {
			t.Errorf("%s: %v, want %v", name, a.Status, c.want)
		}
	}
	must(t, s.writeInline(0, make([]byte, 512)))
	must(t, s.close())
}
