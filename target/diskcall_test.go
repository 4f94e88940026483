package target_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// stuckDisk is a disk of which one call blocks until the test lets it pass.
type stuckDisk struct {
	*flushDisk
	identity block.Identity
	method   atomic.Pointer[string]
	inside   chan struct{} // one for each call that blocks
	pass     chan struct{} // closed: calls pass
	letPass  func()        // closes pass, once
}

func newStuckDisk() *stuckDisk {
	d := &stuckDisk{flushDisk: newFlushDisk(), inside: make(chan struct{}, 64), pass: make(chan struct{})}
	d.letPass = sync.OnceFunc(func() { close(d.pass) })
	d.identity = &stuckIdentity{block.NewIdentity(), d}
	d.Executor.Close()
	d.Executor = block.NewExecutor(d, 0)
	return d
}

// arm has calls of a method block from now on.
func (d *stuckDisk) arm(method string) { d.method.Store(&method) }

func (d *stuckDisk) visit(method string) {
	if m := d.method.Load(); m != nil && *m == method {
		d.inside <- struct{}{}
		<-d.pass
	}
}

func (d *stuckDisk) Info() block.Info {
	d.visit("Info")
	return d.flushDisk.Info()
}

func (d *stuckDisk) Identity() block.Identity { return d.identity }

func (d *stuckDisk) Execute(r *block.Request) error {
	if r.Op == block.Flush {
		d.visit("Flush")
	}
	return d.flushDisk.Execute(r)
}

type stuckIdentity struct {
	block.Identity
	disk *stuckDisk
}

func (i *stuckIdentity) SetWriter(id [16]byte) (block.Writer, error) {
	i.disk.visit("SetWriter")
	return i.Identity.SetWriter(id)
}

// stuckRig serves a stuckDisk, to a control connection with events.
type stuckRig struct {
	*rig
	disk  *stuckDisk
	clock *laterClock
	s     *session
}

func newStuckRig(t *testing.T, role wire.Role) *stuckRig {
	x := &stuckRig{disk: newStuckDisk(), clock: &laterClock{Scheduler: sched.Real}}
	x.rig = newRig(t, target.Config{Scheduler: x.clock}, target.Export{Name: "disk", Device: x.disk})
	t.Cleanup(x.disk.letPass)
	x.s = &session{id: newID(), control: x.peer(t)}
	q := x.s.control.loginRequest(role, x.s.id, 0)
	q.Features |= wire.FeatureEvents
	must(t, x.s.control.login(q))
	return x
}

// send sends a control message.
func (x *stuckRig) send(t *testing.T, m wire.Message) {
	t.Helper()
	b := make([]byte, wire.MaxControlSize)
	n, err := m.Encode(b)
	must(t, errors.Join(err, x.s.control.send(b[:n])))
}

// answer decodes the next message that arrives.
func (x *stuckRig) answer(t *testing.T, m wire.Message) {
	t.Helper()
	e, err := x.s.control.receive()
	must(t, err)
	must(t, m.Decode(e.msg))
}

// alive expects the answers to some keepalives, and that nothing else arrives.
func (x *stuckRig) alive(t *testing.T) {
	t.Helper()
	for id := range uint32(20) {
		var a wire.KeepAlive
		must(t, x.s.control.ask(&wire.KeepAlive{ID: 100 + id, PathEpoch: 1}, &a))
	}
}

// later moves the clock by an interval of keepalives, and ends it.
func (x *stuckRig) later(t *testing.T) {
	t.Helper()
	x.clock.ahead.Add(int64(time.Hour))
	x.alive(t)
}

var openStuck = wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadWrite, Name: "disk"}

// TestCallsOfASlowDisk: a control connection answers keepalives while a disk
// holds up what it was asked for, and that when the disk has answered.
func TestCallsOfASlowDisk(t *testing.T) {
	opened := func(t *testing.T, x *stuckRig) {
		var a wire.OpenResponse
		x.answer(t, &a)
		if a.ID != 2 || a.Status != wire.StatusOK || a.Size != 1<<20 {
			t.Errorf("answer %+v", a)
		}
	}
	for name, c := range map[string]struct {
		role   wire.Role
		method string
		open   bool // the disk is open before the call
		ask    func(*testing.T, *stuckRig)
		answer func(*testing.T, *stuckRig)
	}{
		"open": {
			role: wire.RoleControl, method: "Info",
			ask:    func(t *testing.T, x *stuckRig) { x.send(t, &openStuck) },
			answer: opened,
		},
		"preempting open": {
			role: wire.RoleControl, method: "SetWriter",
			ask: func(t *testing.T, x *stuckRig) {
				q := openStuck
				q.Preempt = true
				x.send(t, &q)
			},
			answer: func(t *testing.T, x *stuckRig) {
				opened(t, x)
				if w := x.disk.identity.Writer(); w.Generation != 1 {
					t.Errorf("the writer is not kept: %+v", w)
				}
			},
		},
		"discover": {
			role: wire.RoleDiscover, method: "Info",
			ask: func(t *testing.T, x *stuckRig) {
				x.send(t, &wire.DiscoverRequest{ID: 2, PathEpoch: 1, MaxMessage: wire.MaxControlSize})
			},
			answer: func(t *testing.T, x *stuckRig) {
				var a wire.DiscoverResponse
				if x.answer(t, &a); len(a.Entries) != 1 || a.Entries[0].Size != 1<<20 {
					t.Errorf("answer %+v", a)
				}
			},
		},
		"size": {
			role: wire.RoleControl, method: "Info", open: true,
			ask: func(t *testing.T, x *stuckRig) { x.later(t) },
			answer: func(t *testing.T, x *stuckRig) {
				waitFor(t, "the next question", func() bool {
					x.later(t)
					return len(x.disk.inside) > 0
				})
			},
		},
		"logout amid the question for a size": {
			role: wire.RoleControl, method: "Info", open: true,
			ask: func(t *testing.T, x *stuckRig) {
				x.later(t)
				x.send(t, &wire.Logout{ID: 9, PathEpoch: 1})
			},
			answer: func(t *testing.T, x *stuckRig) { x.answer(t, &wire.LogoutResponse{}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newStuckRig(t, c.role)
			if c.open {
				x.send(t, &openStuck)
				opened(t, x)
			}
			x.disk.arm(c.method)
			c.ask(t, x)
			<-x.disk.inside
			x.alive(t)
			x.disk.letPass()
			c.answer(t, x)
		})
	}
}

// TestDrainOfASlowDisk: the flush of a drain may take as long as the disk
// needs, and the answer to the logout says that everything is durable.
func TestDrainOfASlowDisk(t *testing.T) {
	x := newStuckRig(t, wire.RoleControl)
	x.send(t, &openStuck)
	x.answer(t, &wire.OpenResponse{})
	x.disk.arm("Flush")
	drained := make(chan error, 1)
	go func() { drained <- x.server.Drain(context.Background()) }()
	v, err := x.s.control.listen(forever)
	if err != nil || v == nil || v.Kind != wire.EventGoAway {
		t.Fatalf("the event of a drain: %+v, %v", v, err)
	}
	x.send(t, &wire.Logout{ID: 9, PathEpoch: 1})
	<-x.disk.inside
	x.later(t) // beyond the time of the logout
	x.disk.letPass()
	var a wire.LogoutResponse
	if x.answer(t, &a); a.ID != 9 || !a.Durable {
		t.Errorf("answer %+v", a)
	}
	must(t, <-drained)
}

// TestLostAmidACall: an initiator that leaves while the disk holds up its open
// leaves nothing, and keeps other writers out until the disk has answered.
// Serve waits for the disk.
func TestLostAmidACall(t *testing.T) {
	x := newStuckRig(t, wire.RoleControl)
	x.disk.arm("SetWriter")
	q := openStuck
	q.Preempt = true
	x.send(t, &q)
	<-x.disk.inside
	must(t, x.s.control.close())
	other := x.other(t)
	for id := range uint32(200) {
		if status := other.tryOpen(t, id, "disk", wire.OpenReadWrite); status != wire.StatusBusy {
			t.Fatalf("open while a lost session becomes the writer: %v", status)
		}
	}
	if got := x.state(); got.connections != 2 || got.sessions != 2 {
		t.Errorf("the session leaves before its call: %+v", got)
	}
	x.cancel()
	waitFor(t, "the end of the other connection", func() bool { return x.state().connections <= 1 })
	select {
	case <-x.served:
		t.Fatal("Serve returned while a call was in the disk")
	default:
	}
	x.disk.letPass()
	err := <-x.served
	x.served <- err
	must(t, err)
	x.reaches(state{opens: "disk0 "})
}

// TestTooManyCalls: a connection that asks for more than a request at a time
// ends; one question for a size is not the initiator's.
func TestTooManyCalls(t *testing.T) {
	x := newStuckRig(t, wire.RoleControl)
	x.disk.arm("Info")
	for id := range uint32(8) {
		q := openStuck
		q.OpenID = id
		if err := sendControl(x.s.control, &q); err != nil && !errors.Is(err, errLost) {
			t.Fatal(err)
		}
	}
	if n, err := x.s.control.ends(); n != 0 || err != nil {
		t.Errorf("%d answers, %v", n, err)
	}
	x.disk.letPass()
}

// TestOpenOverTwoPaths: an open that is asked for again over another path,
// while the disk holds up the first, is one open.
func TestOpenOverTwoPaths(t *testing.T) {
	x := newStuckRig(t, wire.RoleControl)
	first := x.s.control
	second := x.joinPath(t, x.s, 1, 2)
	x.disk.arm("Info")
	x.send(t, &openStuck)
	x.s.control = second
	q := openStuck
	q.PathEpoch = 2
	x.send(t, &q)
	<-x.disk.inside
	<-x.disk.inside
	x.disk.letPass()
	for _, p := range []*peer{first, second} {
		x.s.control = p
		var a wire.OpenResponse
		if x.answer(t, &a); a.Status != wire.StatusOK || a.Export != 0 {
			t.Errorf("answer %+v", a)
		}
	}
	if n := x.server.Status().Exports[0].Opens; n != 1 {
		t.Errorf("%d opens", n)
	}
}
