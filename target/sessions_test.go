package target_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// unproved is a request of a peer whose identity nothing proves.
type unproved struct{ via.Incoming }

func (unproved) Origin() string { return "192.0.2.7" }

// network is a provider whose peers are all anonymous.
type network struct{ via.Provider }

func (n network) Open(device string) (via.Adapter, error) {
	a, err := n.Provider.Open(device)
	return networkAdapter{a}, err
}

type networkAdapter struct{ via.Adapter }

func (a networkAdapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(unproved{in}) })
}

// newServers serves the exports by two servers with the same sessions: here by
// one whose peers are of this user, there by one over a network.
func newServers(t *testing.T, exports ...target.Export) (here, there *rig) {
	t.Helper()
	sessions, err := target.NewSessions(nil)
	must(t, err)
	for i := range exports {
		exports[i].Reservations = reserve.New(exports[i].Device, sched.Real)
	}
	nic, err := via.OpenNic(network{shm.New(shm.Options{})}, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	here = newRig(t, target.Config{Sessions: sessions}, exports...)
	there = serve(t, target.Config{Sessions: sessions, NIC: nic}, exports...)
	return here, there
}

// listed is an export for this user alone.
func listed(t *testing.T, name string) target.Export {
	t.Helper()
	x := target.Export{Name: name, Device: openDevice(t, "memory:1MiB")}
	var err error
	x.Rights, err = access.Parse([]string{fmt.Sprintf("uid:%d", os.Getuid())}, nil)
	must(t, err)
	return x
}

func open(t *testing.T, name string) target.Export {
	t.Helper()
	return target.Export{Name: name, Device: openDevice(t, "memory:1MiB")}
}

// TestSessionOverTwoServers: the paths of a session lead to two servers, which
// see the same disk, and it outlives either path. Each server counts what its
// connections did.
func TestSessionOverTwoServers(t *testing.T) {
	here, there := newServers(t, open(t, "disk"))
	bases := []state{here.state(), there.state()}
	for _, lost := range []int{0, 1} {
		before := there.server.Status().Exports[0].Stats.Writes
		s := here.attach(t, "disk")
		other := there.joinPath(t, s, 1, 2)
		if other.answer.TargetID != s.control.answer.TargetID {
			t.Fatal("the servers are two targets")
		}
		paths, io := []*peer{s.control, other}, []*peer{s.io, there.joinBy(t, s, other, 2)}
		data := bytes.Repeat([]byte{byte(lost + 1)}, 512)
		over := *s
		over.io = io[1]
		must(t, over.writeInline(0, data))
		got, err := s.readInline(0, 512)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Fatal("the servers have different disks")
		}
		if list := here.server.Sessions(); len(list) != 1 || list[0].Connections != 4 || len(there.server.Sessions()) != 0 {
			t.Fatalf("sessions here %+v", list)
		}
		must(t, paths[lost].close())
		if _, err := io[lost].ends(); err != nil {
			t.Fatal(err)
		}
		s.control, s.io = paths[1-lost], io[1-lost]
		s.control.fenced(t, uint16(lost), uint32(lost+1))
		must(t, s.writeInline(0, data))
		must(t, s.close())
		here.reaches(bases[0])
		there.reaches(bases[1])
		if n := there.server.Status().Exports[0].Stats.Writes - before; n != uint64(2-lost) {
			t.Errorf("%d writes there, want %d", n, 2-lost)
		}
	}
}

// TestFenceAcrossServers: a fence over one server holds when the requests of
// the path over the other have left the disk, and not before.
func TestFenceAcrossServers(t *testing.T) {
	g := newGate(1, 1<<20)
	here, there := newServers(t, target.Export{Name: "disk", Device: g})
	s := here.attach(t, "disk")
	other := there.joinPath(t, s, 1, 2)
	data := make([]byte, 512)
	must(t, s.io.command(inlineWrite(0, data), data))
	<-g.started // it is in the disk
	for range 3 {
		a, err := other.fence(0, 1)
		must(t, err)
		if a.Status != wire.StatusBusy || a.Busy == 0 {
			t.Fatalf("with a request in the disk: %+v", a)
		}
	}
	late := here.peer(t)
	late.refusedFor(t, late.loginRequest(wire.RoleIO, s.id, 2), wire.ReasonEpoch)
	close(g.pass)
	other.fenced(t, 0, 1)
	if n, err := s.io.ends(); n != 0 || err != nil {
		t.Errorf("the connection of the fenced path: %d messages, %v", n, err)
	}
	s.control, s.io = other, there.joinBy(t, s, other, 1)
	must(t, s.writeInline(0, data))
	must(t, s.close())
}

// TestLogoutEndsPathsOfAllServers: the answer to a logout comes when no
// connection of the session is left at either server.
func TestLogoutEndsPathsOfAllServers(t *testing.T) {
	here, there := newServers(t, open(t, "disk"))
	logOutOver(t, here, there)
}

// TestAdministratorEndsSessionOfAllServers: the device of a session that the
// administrator ended opens no disk at any server.
func TestAdministratorEndsSessionOfAllServers(t *testing.T) {
	here, there := newServers(t, open(t, "disk"))
	s := &session{id: newID(), control: here.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	q := wire.OpenRequest{OpenID: 1, Name: "disk", Mode: wire.OpenReadWrite, Writer: newID()}
	if a := s.ask(t, q); a.Status != wire.StatusOK {
		t.Fatal(a.Reason)
	}
	if !there.server.EndSession(here.server.Sessions()[0].ID) {
		t.Fatal("the session is unknown to the other server")
	}
	again := &session{id: newID(), control: here.peer(t)}
	must(t, again.control.login(again.control.loginRequest(wire.RoleControl, again.id, 0)))
	if a := again.ask(t, q); a.Status != wire.StatusPermission {
		t.Errorf("the ended device opens the disk: %v", a.Status)
	}
}

// A connection without the identity of the session's client joins if it may
// itself use what the session has open, and the session opens no more than that
// from then on.
func TestJoinedPathGainsNothing(t *testing.T) {
	here, there := newServers(t, open(t, "open"), listed(t, "list"))
	base := here.state()
	s := here.attach(t, "open")
	other := there.joinPath(t, s, 1, 2)
	joined := there.joinBy(t, s, other, 2)
	for name, control := range map[string]*peer{"own": s.control, "joined": other} {
		x := *s
		x.control = control
		var a wire.OpenResponse
		if err := x.open(7, "list", wire.OpenReadOnly, &a); err == nil || !strings.Contains(err.Error(), `no export is named "list"`) {
			t.Errorf("over the %s path, a listed export: %v", name, err)
		}
	}
	must(t, s.writeInline(0, make([]byte, 512)))
	must(t, s.close())
	must(t, other.close())
	must(t, joined.close())
	here.reaches(base)

	// An anonymous session opens nothing more by a path of a user who could.
	s = there.attach(t, "open")
	other = here.joinPath(t, s, 1, 2)
	x := *s
	x.control = other
	var a wire.OpenResponse
	if err := x.open(7, "list", wire.OpenReadOnly, &a); err == nil {
		t.Error("a listed export is opened in an anonymous session")
	}
	must(t, s.close())
}

// A connection joins no session that has something open which it may not use
// itself; one with a wrong nonce does not learn that there is a session.
func TestRefusedIdentities(t *testing.T) {
	here, there := newServers(t, open(t, "open"), listed(t, "list"))
	s := here.attach(t, "list")
	control := func(p *peer) *wire.LoginRequest {
		p.path, p.epoch = 1, 2
		return p.loginRequest(wire.RoleControl, s.id, 0)
	}
	p := there.peer(t)
	p.refusedFor(t, control(p), wire.ReasonHost)
	p = there.peer(t)
	p.refusedFor(t, p.loginRequest(wire.RoleIO, s.id, 2), wire.ReasonHost)
	p = there.peer(t)
	q := control(p)
	q.Nonce++
	p.refusedFor(t, q, wire.ReasonSession)
	here.joinBy(t, s, s.control, 2) // as before
	must(t, s.close())

	// The rights of now count, too.
	s = here.attach(t, "open")
	joined := there.joinPath(t, s, 1, 2)
	must(t, joined.close())
	s.control.fenced(t, 1, 2)
	var exports []target.Export
	for _, x := range here.exports {
		if x.Name == "open" {
			x.Rights = here.exports[1].Rights
		}
		exports = append(exports, x)
	}
	must(t, here.server.SetExports(exports))
	must(t, there.server.SetExports(exports))
	p = there.peer(t)
	q = control(p)
	p.epoch, q.PathEpoch = 3, 3
	p.refusedFor(t, q, wire.ReasonHost)
	must(t, s.close())
}

// An anonymous session takes in one user, not a second one.
func TestSessionHasOneUser(t *testing.T) {
	sessions, err := target.NewSessions(nil)
	must(t, err)
	u := &users{Provider: shm.New(shm.Options{})}
	var nics []*via.NIC
	for _, p := range []via.Provider{u, network{shm.New(shm.Options{})}} {
		nic, err := via.OpenNic(p, "")
		must(t, err)
		nic.ErrorCallback(func(via.AsyncError) {})
		nics = append(nics, nic)
	}
	local, remote := serve(t, target.Config{Sessions: sessions, NIC: nics[0]}), serve(t, target.Config{Sessions: sessions, NIC: nics[1]})
	s := &session{id: newID(), control: remote.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	u.uid.Store(7)
	must(t, local.joinPath(t, s, 1, 2).close())
	u.uid.Store(9)
	p := local.peer(t)
	p.path, p.epoch = 2, 3
	p.refusedFor(t, p.loginRequest(wire.RoleControl, s.id, 0), wire.ReasonSession)
	u.uid.Store(7)
	must(t, local.joinPath(t, s, 2, 4).close())
}

// gatedInfo is a disk whose description takes until the gate opens.
type gatedInfo struct {
	block.Device
	armed         atomic.Bool
	entered, pass chan struct{}
}

func (g *gatedInfo) Info() block.Info {
	if g.armed.CompareAndSwap(true, false) {
		close(g.entered)
		<-g.pass
	}
	return g.Device.Info()
}

// A client that joins while an export is being opened gets no part in it: the
// open fails if it may not use the export itself.
func TestJoinAmidOpen(t *testing.T) {
	x := listed(t, "list")
	g := &gatedInfo{Device: x.Device, entered: make(chan struct{}), pass: make(chan struct{})}
	x.Device = g
	here, there := newServers(t, x)
	s := &session{id: newID(), control: here.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	g.armed.Store(true)
	opened := make(chan error, 1)
	go func() { opened <- s.open(1, "list", wire.OpenReadWrite, new(wire.OpenResponse)) }()
	<-g.entered
	other := there.joinPath(t, s, 1, 2)
	close(g.pass)
	if err := <-opened; err == nil || !strings.Contains(err.Error(), "list of clients") {
		t.Errorf("opened amid a join: %v", err)
	}
	here.reaches(state{connections: 1, sessions: 1, opens: "list0 "})
	must(t, other.close())
	must(t, s.control.close())
}
