package target_test

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// userRequest is a request of another user of this host.
type userRequest struct {
	via.Incoming
	uid uint32
}

func (r userRequest) PeerUID() uint32 { return r.uid }
func (r userRequest) Origin() string  { return fmt.Sprintf("user %d", r.uid) }

// users is a provider whose requests come from the user uid.
type users struct {
	via.Provider
	uid atomic.Uint32
}

func (u *users) Open(device string) (via.Adapter, error) {
	a, err := u.Provider.Open(device)
	return userAdapter{a, u}, err
}

type userAdapter struct {
	via.Adapter
	u *users
}

func (a userAdapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(userRequest{in, a.u.uid.Load()}) })
}

// rightsRig is a rig with exports for each kind of list, to which users
// connect.
func rightsRig(t *testing.T) (*rig, *users) {
	t.Helper()
	u := &users{Provider: shm.New(shm.Options{})}
	nic, err := via.OpenNic(u, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	export := func(name string, clients, readOnly []string) target.Export {
		x := target.Export{Name: name, Device: openDevice(t, "memory:1MiB")}
		x.Rights, err = access.Parse(clients, readOnly)
		must(t, err)
		return x
	}
	return newRig(t, target.Config{NIC: nic}, export("open", nil, nil), export("list", []string{"uid:7"}, []string{"uid:8"}),
		export("void", []string{}, nil)), u
}

// loginAs connects as a user and begins a session.
func (r *rig) loginAs(t *testing.T, u *users, uid uint32) *session {
	t.Helper()
	u.uid.Store(uid)
	s := &session{id: newID(), control: r.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	return s
}

// ask opens an export without an opinion about the answer.
func (s *session) ask(t *testing.T, q wire.OpenRequest) wire.OpenResponse {
	t.Helper()
	q.ID, q.PathEpoch = 2, s.control.epoch
	var a wire.OpenResponse
	must(t, s.control.ask(&q, &a))
	return a
}

// A session opens what the list of the export says of its user, and a hidden
// export is answered as none.
func TestRightsOfSessions(t *testing.T) {
	r, u := rightsRig(t)
	for _, c := range []struct {
		uid         uint32
		export      string
		read, write wire.Status
	}{
		{7, "list", wire.StatusOK, wire.StatusOK},
		{8, "list", wire.StatusOK, wire.StatusPermission},
		{9, "list", wire.StatusNotFound, wire.StatusNotFound},
		{7, "void", wire.StatusNotFound, wire.StatusNotFound},
		{7, "open", wire.StatusNotFound, wire.StatusNotFound}, // admitted for the list alone
		{7, "gone", wire.StatusNotFound, wire.StatusNotFound},
	} {
		for i, q := range []wire.OpenRequest{
			{Mode: wire.OpenReadOnly},
			{Mode: wire.OpenReadWrite},
			{Mode: wire.OpenExclusive},
			{Mode: wire.OpenReadOnly, Preempt: true},
		} {
			s := r.loginAs(t, u, c.uid)
			q.OpenID, q.Name = uint32(i+1), c.export
			want := c.write
			if i == 0 {
				want = c.read
			}
			a := s.ask(t, q)
			if a.Status != want {
				t.Errorf("user %d, %q, request %d: %v (%s), want %v", c.uid, c.export, i, a.Status, a.Reason, want)
			}
			if a.Status == wire.StatusNotFound && a != (wire.OpenResponse{ID: 2, PathEpoch: 1, Status: a.Status, Reason: fmt.Sprintf("no export is named %q", c.export)}) {
				t.Errorf("user %d learns of %q: %+v", c.uid, c.export, a)
			}
			must(t, s.control.close())
			r.reaches(state{opens: "open0 list0 void0 "})
		}
	}
	if !regexp.MustCompile(`export=list identity=".*uid 9" reason="the client is not on the export's list"`).MatchString(r.log.String()) {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
}

// A list has what the session may open, with the features that it would have.
func TestListOfRights(t *testing.T) {
	r, u := rightsRig(t)
	for uid, want := range map[uint32]string{7: "list", 8: "list read-only", 9: ""} {
		s := r.loginAs(t, u, uid)
		var a wire.DiscoverResponse
		must(t, s.control.ask(&wire.DiscoverRequest{ID: 3, PathEpoch: 1, MaxMessage: wire.MaxControlSize}, &a))
		var got []string
		for _, e := range a.Entries {
			got = append(got, e.Name)
			if block.Features(e.Features)&block.ReadOnly != 0 {
				got = append(got, "read-only")
			}
		}
		if strings.Join(got, " ") != want || a.Status != wire.StatusOK {
			t.Errorf("user %d sees %q, want %q", uid, got, want)
		}
		// How many exports are hidden is no secret that a cursor finds out.
		must(t, s.control.ask(&wire.DiscoverRequest{ID: 4, PathEpoch: 1, Cursor: uint32(len(a.Entries) + 1), MaxMessage: wire.MaxControlSize}, &a))
		if a.Status != wire.StatusInvalid {
			t.Errorf("user %d: a cursor behind the end: %v", uid, a.Status)
		}
		must(t, s.control.close())
	}
}

// A client without the right to write neither ends a writer nor takes its
// place.
func TestReaderTakesNoPlaceOfWriter(t *testing.T) {
	r, u := rightsRig(t)
	writer := r.loginAs(t, u, 7)
	if a := writer.ask(t, wire.OpenRequest{OpenID: 1, Name: "list", Mode: wire.OpenReadWrite}); a.Status != wire.StatusOK {
		t.Fatalf("got %v: %s", a.Status, a.Reason)
	}
	reader := r.loginAs(t, u, 8)
	for i, preempt := range []bool{false, true} {
		if a := reader.ask(t, wire.OpenRequest{OpenID: uint32(i + 1), Name: "list", Mode: wire.OpenExclusive, Preempt: preempt}); a.Status != wire.StatusPermission {
			t.Errorf("preempt %v: %v: %s", preempt, a.Status, a.Reason)
		}
	}
	r.reaches(state{connections: 2, sessions: 2, opens: "open0 list1 void0 "})
	must(t, writer.control.close())
	must(t, reader.control.close())
}

// The session ID of another user opens no connection to its disks.
func TestSessionOfAnotherUser(t *testing.T) {
	r, u := rightsRig(t)
	s := r.loginAs(t, u, 7)
	u.uid.Store(9)
	p := r.peer(t)
	q := p.loginRequest(wire.RoleIO, s.id, 1)
	if err := p.login(q); err == nil || !strings.Contains(err.Error(), "no such session") {
		t.Errorf("the login of another user: %v", err)
	}
	must(t, p.close())
	u.uid.Store(7)
	must(t, r.join(t, s, 2).close())
	must(t, s.control.close())
}
