package target_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// other logs another session in, which has nothing open.
func (r *rig) other(t testing.TB) *session {
	t.Helper()
	s := &session{id: newID(), control: r.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	return s
}

// tryOpen opens an export and returns the status.
func (s *session) tryOpen(t testing.TB, id uint32, name string, mode wire.OpenMode) wire.Status {
	t.Helper()
	var a wire.OpenResponse
	must(t, s.control.ask(&wire.OpenRequest{ID: 9, PathEpoch: 1, OpenID: id, Mode: mode, Name: name}, &a))
	return a.Status
}

func (s *session) closeHandle(t testing.TB, id uint32, handle uint16) wire.Status {
	t.Helper()
	var a wire.CloseResponse
	must(t, s.control.ask(&wire.CloseRequest{ID: 8, PathEpoch: 1, OpenID: id, Export: handle}, &a))
	return a.Status
}

func (s *session) logout() error {
	var a wire.LogoutResponse
	return s.control.ask(&wire.Logout{ID: 7, PathEpoch: 1}, &a)
}

// write starts an inline write in a slot and waits until the disk has it.
func (s *session) write(t testing.TB, g *gate, slot uint16) {
	t.Helper()
	cmd := inlineWrite(uint64(slot)*512, make([]byte, 512))
	cmd.Slot, cmd.Export = slot, s.export.Export
	must(t, s.io.command(cmd, make([]byte, 512)))
	<-g.started
}

// TestCloseUnderIO: a closed handle takes no command any more, and the export
// is another's only when the last command is done.
func TestCloseUnderIO(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g}, disk(t, "good"))
	good := r.healthy(t, "good")
	s, other := r.attach(t, "slow"), r.other(t)
	s.write(t, g, 0)
	if status := s.closeHandle(t, 1, s.export.Export); status != wire.StatusOK {
		t.Fatalf("close: %v", status)
	}
	cmd := inlineRead(0, 512)
	cmd.Slot = 1
	if _, err := s.run(cmd, nil, wire.StatusNotFound); err != nil {
		t.Errorf("command after the close: %v", err)
	}
	if status := other.tryOpen(t, 1, "slow", wire.OpenReadWrite); status != wire.StatusBusy {
		t.Errorf("open by another while a write is in flight: %v", status)
	}
	close(g.pass)
	if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
		t.Errorf("the write: %v, %v", status, err)
	}
	waitFor(t, "the export", func() bool { return other.tryOpen(t, 2, "slow", wire.OpenReadWrite) == wire.StatusOK })
	if status := s.closeHandle(t, 1, s.export.Export); status != wire.StatusOK {
		t.Errorf("close again: %v", status)
	}
	if status := s.closeHandle(t, 99, s.export.Export); status != wire.StatusNotFound {
		t.Errorf("close by another id: %v", status)
	}
	good.progresses()
}

// TestExportStaysBusyUntilIOEnds: the loss of a session gives an export to
// another only when nothing of the session can write any more.
func TestExportStaysBusyUntilIOEnds(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g})
	s, other := r.attach(t, "slow"), r.other(t)
	base := r.state()
	s.write(t, g, 0)
	must(t, s.control.close())
	if _, err := s.io.ends(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the control connection", func() bool { return r.state().connections < base.connections })
	if status := other.tryOpen(t, 1, "slow", wire.OpenReadWrite); status != wire.StatusBusy {
		t.Errorf("open while a write of a lost session is in flight: %v", status)
	}
	close(g.pass)
	waitFor(t, "the export", func() bool { return other.tryOpen(t, 2, "slow", wire.OpenReadWrite) == wire.StatusOK })
}

// TestWriterKeepsTheExport however many other opens of it come and go.
func TestWriterKeepsTheExport(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "disk"))
	s, other := r.attach(t, "disk"), r.other(t)
	var a wire.OpenResponse
	must(t, s.open(2, "disk", wire.OpenReadOnly, &a))
	if status := s.closeHandle(t, 2, a.Export); status != wire.StatusOK {
		t.Fatal(status)
	}
	must(t, s.open(3, "disk", wire.OpenReadWrite, &a))
	if status := s.closeHandle(t, 3, a.Export); status != wire.StatusOK {
		t.Fatal(status)
	}
	for mode, want := range map[wire.OpenMode]wire.Status{
		wire.OpenReadWrite: wire.StatusBusy, wire.OpenExclusive: wire.StatusBusy,
		wire.OpenMigrate: wire.StatusNotSupported, wire.OpenReadOnly: wire.StatusOK,
	} {
		if got := other.tryOpen(t, uint32(mode), "disk", mode); got != want {
			t.Errorf("open in mode %v beside a writer: %v, want %v", mode, got, want)
		}
	}
	must(t, s.close())
	waitFor(t, "the export", func() bool { return other.tryOpen(t, 100, "disk", wire.OpenReadWrite) == wire.StatusOK })
}

// TestLogoutGivesBackFirst: the export is free when the answer to a logout
// arrives.
func TestLogoutGivesBackFirst(t *testing.T) {
	r := newRig(t, target.Config{}, fileDisk(t, "disk"))
	for range 50 {
		s := r.attach(t, "disk")
		must(t, s.writeInline(0, make([]byte, 512)))
		must(t, s.logout())
		if _, err := s.io.ends(); err != nil {
			t.Fatal(err)
		}
		must(t, s.close())
	}
	if text := r.log.String(); text != "" {
		t.Errorf("an orderly end is in the log:\n%s", text)
	}
}

// TestLostInitiator: an unannounced end is logged.
func TestLostInitiator(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "disk"))
	base := r.state()
	s := r.attach(t, "disk")
	must(t, s.close())
	r.reaches(base)
	if text := r.log.String(); strings.Count(text, "the initiator is gone") == 0 {
		t.Errorf("the log does not say so:\n%s", text)
	}
}

// TestManyOpens: a session that opens without end reaches its limit.
func TestManyOpens(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"), fileDisk(t, "bad"))
	good := r.healthy(t, "good")
	base := r.state()
	s := r.attach(t, "bad")
	descriptors := openDescriptors(t)
	opened := 1
	for id := range uint32(4096 + 300) {
		switch status := s.tryOpen(t, id+10, "bad", wire.OpenReadOnly); status {
		case wire.StatusOK:
			opened++
		case wire.StatusLimit:
		default:
			t.Fatalf("open %d: %v", id, status)
		}
	}
	if opened != 4096 {
		t.Errorf("the session opened exports %d times, the limit is 4096", opened)
	}
	for handle := range 300 {
		s.export.Export = uint16(handle)
		if _, err := s.readInline(0, 512); err != nil {
			t.Fatalf("handle %d: %v", handle, err)
		}
	}
	if n := openDescriptors(t) - descriptors; n > 20 {
		t.Errorf("300 opens of one export cost %d file descriptors", n)
	}
	must(t, s.close())
	r.reaches(base)
	good.progresses()
}

// openDescriptors counts the file descriptors of this process.
func openDescriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// TestControlRequests: requests that this version does not serve are answered,
// what is no request ends the session.
func TestControlRequests(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "good"), disk(t, "bad"))
	good := r.healthy(t, "good")
	base := r.state()
	unknown := func(op byte) func(*session) error {
		return func(s *session) error {
			b := make([]byte, wire.MaxControlSize)
			n, err := (&wire.KeepAlive{ID: 3, PathEpoch: 1}).Encode(b)
			b[0] = op
			return errors.Join(err, s.control.send(seal(b[:n])))
		}
	}
	send := func(m wire.Message) func(*session) error {
		return func(s *session) error { return sendControl(s.control, m) }
	}
	cases := map[string]struct {
		do       func(*session) error
		answered bool
	}{
		"abort":           {send(&wire.Abort{ID: 3, PathEpoch: 1}), true},
		"unknown request": {unknown(0x5f), true},
		"unknown answer":  {unknown(0xcf), false},
		"response":        {send(&wire.CloseResponse{ID: 3, PathEpoch: 1}), false},
		"refused":         {send(&wire.Refused{ID: 3, PathEpoch: 1, Status: wire.StatusNotSupported, Request: wire.OpOpen}), false},
		"event":           {send(&wire.Event{ID: 3, PathEpoch: 1, Kind: wire.EventGoAway}), false},
		"wrong epoch":     {send(&wire.KeepAlive{ID: 3, PathEpoch: 2}), false},
		"immediate":       {func(s *session) error { return s.control.sendImmediate(wire.MakeImmediate(wire.ImmCredit, 1, 0, 9)) }, false},
		"command":         {func(s *session) error { return s.control.command(inlineRead(0, 512), nil) }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := r.attach(t, "bad")
			must(t, c.do(s))
			if c.answered {
				var a wire.Refused
				e, err := s.control.receive()
				must(t, errors.Join(err, a.Decode(e.msg)))
				if a.ID != 3 || a.Status != wire.StatusNotSupported {
					t.Errorf("answered %+v", a)
				}
				must(t, s.keepalive())
			} else if n, err := s.control.ends(); err != nil || n != 0 {
				t.Errorf("%d answers before the end, %v", n, err)
			}
			must(t, s.close())
			r.reaches(base)
			good.progresses()
		})
	}
}

// TestServeWaits: Serve returns when nothing touches a disk any more.
func TestServeWaits(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g})
	s := r.attach(t, "slow")
	s.write(t, g, 0)
	r.cancel()
	if _, err := s.io.ends(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.served:
		t.Fatal("Serve returned while a write was in flight")
	default:
	}
	close(g.pass)
	err := <-r.served
	r.served <- err
	must(t, err)
	if got := r.state(); got.connections != 0 || got.sessions != 0 || got.opens != "slow0 " {
		t.Errorf("left over: %+v", got)
	}
}

// TestSecondServe: the end of one listener leaves the connections of the other.
func TestSecondServe(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "disk"))
	good := r.healthy(t, "disk")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	host := r.host + "2"
	l, err := r.server.Listen(host)
	must(t, err)
	go func() { served <- r.server.Serve(ctx, l) }()
	p, err := connect(r.nic, host, nil)
	must(t, err)
	must(t, p.login(p.loginRequest(wire.RoleDiscover, newID(), 0)))
	cancel()
	must(t, <-served)
	if _, err := p.ends(); err != nil {
		t.Error(err)
	}
	must(t, p.close())
	good.progresses()
}

// TestCountsOfExports: each export counts its requests, over all connections,
// before and after their end.
func TestCountsOfExports(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "one"), fileDisk(t, "two"))
	base := r.state()
	one, two := r.attach(t, "one"), r.attach(t, "two")
	for range 3 {
		must(t, one.writeInline(0, make([]byte, 512)))
	}
	_, err := two.readInline(0, 1024)
	must(t, err)
	_, err = two.run(inlineRead(1<<40, 512), nil, wire.StatusInvalid) // behind the end
	must(t, err)
	check := func(connections int) {
		t.Helper()
		var x, y target.ExportStatus
		waitFor(t, "the counters", func() bool {
			s := r.server.Status()
			x, y = s.Exports[0], s.Exports[1]
			return x.Stats.Writes == 3 && y.Stats.Errors == 1 && x.Connections == connections && y.Connections == connections &&
				s.Stats.Reads == 1 && s.Stats.Writes == 3
		})
		if x.Stats.BytesWritten != 3*512 || x.Stats.Reads != 0 || x.Stats.Errors != 0 || y.Stats.Reads != 1 || y.Stats.BytesRead != 1024 || y.Stats.Writes != 0 {
			t.Errorf("%+v and %+v", x.Stats, y.Stats)
		}
	}
	check(1)
	must(t, one.close())
	must(t, two.close())
	r.reaches(base)
	check(0)
}
