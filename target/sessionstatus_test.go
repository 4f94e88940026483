package target_test

import (
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// find returns a session of the list.
func (r *rig) find(id [16]byte) (target.SessionStatus, bool) {
	list := r.server.Sessions()
	i := slices.IndexFunc(list, func(s target.SessionStatus) bool { return s.ID == hex.EncodeToString(id[:]) })
	if i < 0 {
		return target.SessionStatus{}, false
	}
	return list[i], true
}

// TestSessions: the list has each session with what all of its connections did,
// also those that have left it.
func TestSessions(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "one"), fileDisk(t, "two"))
	start := time.Now()
	a, b := r.attach(t, "one"), r.attach(t, "two")
	for range 3 {
		must(t, a.writeInline(0, make([]byte, 512)))
	}
	_, err := b.readInline(0, 1024)
	must(t, err)
	check := func(connections int) {
		t.Helper()
		var x target.SessionStatus
		waitFor(t, "the counters", func() bool {
			x, _ = r.find(a.id)
			return x.Stats.Writes == 3 && x.Connections == connections
		})
		if x.Stats.BytesWritten != 3*512 || x.Stats.Reads != 0 || x.Stats.Errors != 0 || !slices.Equal(x.Exports, []string{"one"}) {
			t.Errorf("%+v", x)
		}
		if x.Opened.Before(start) || x.LastActive.Before(x.Opened) || x.LastActive.After(time.Now()) || x.Peer == "" || x.Identity == "" {
			t.Errorf("%+v", x)
		}
	}
	check(2)
	if x, _ := r.find(b.id); x.Stats.Writes != 0 || !slices.Equal(x.Exports, []string{"two"}) {
		t.Errorf("the other session: %+v", x)
	}
	must(t, a.io.close())
	check(1)
	must(t, a.logout())
	waitFor(t, "the session to end", func() bool { _, ok := r.find(a.id); return !ok })
}

// TestEndSession: the initiator is told to go, its disk is free for others, and
// only its own device is refused from then on. Ending is idempotent.
func TestEndSession(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "disk"), disk(t, "good"))
	good := r.healthy(t, "good")
	writer := newID()
	s := &session{id: newID(), control: r.peer(t)}
	login := s.control.loginRequest(wire.RoleControl, s.id, 0)
	login.Features |= wire.FeatureEvents
	must(t, s.control.login(login))
	open := func(s *session, writer [16]byte) (a wire.OpenResponse) {
		t.Helper()
		q := wire.OpenRequest{ID: 2, PathEpoch: s.control.epoch, OpenID: 1, Mode: wire.OpenReadWrite, Name: "disk", Writer: writer}
		must(t, s.control.ask(&q, &a))
		return a
	}
	if s.export = open(s, writer); s.export.Status != wire.StatusOK {
		t.Fatal(s.export.Status)
	}
	s.io = r.join(t, s, 1)
	must(t, s.writeInline(0, make([]byte, 512)))

	id := hex.EncodeToString(s.id[:])
	for _, unknown := range []string{"", "00", id[:30], id + "00", "zz" + id[2:], hex.EncodeToString(make([]byte, 16))} {
		if r.server.EndSession(unknown) {
			t.Errorf("session %q was ended", unknown)
		}
	}
	good.progresses()
	for range 2 {
		if !r.server.EndSession(id) {
			t.Error("the session is unknown")
		}
	}
	if _, err := s.io.ends(); err != nil {
		t.Error(err)
	}
	if told, err := s.control.ends(); err != nil || told != 1 {
		t.Errorf("the initiator got %d events, %v", told, err)
	}
	waitFor(t, "the session to end", func() bool { _, ok := r.find(s.id); return !ok })
	if !r.server.EndSession(id) {
		t.Error("ended again, the session is unknown")
	}
	other := r.other(t)
	if a := open(other, writer); a.Status != wire.StatusPermission || a.Reason == "" {
		t.Errorf("the same device returns: %v, %q", a.Status, a.Reason)
	}
	if a := open(other, newID()); a.Status != wire.StatusOK {
		t.Errorf("another device: %v: %s", a.Status, a.Reason)
	}
	good.progresses()
}
