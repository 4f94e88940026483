package target_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// origins is a provider whose requests come from other hosts: those that name
// returns.
type origins struct {
	via.Provider
	mu sync.Mutex
	// +checklocks:mu
	now string
}

// from sets the host of the next requests.
func (o *origins) from(host string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = host
}

func (o *origins) Open(device string) (via.Adapter, error) {
	a, err := o.Provider.Open(device)
	return originAdapter{a, o}, err
}

type originAdapter struct {
	via.Adapter
	o *origins
}

func (a originAdapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) {
		a.o.mu.Lock()
		from := a.o.now
		a.o.mu.Unlock()
		incoming(originRequest{in, from})
	})
}

type originRequest struct {
	via.Incoming
	host string
}

func (r originRequest) RemoteHost() string { return net.JoinHostPort(r.host, "4791") }

// newOriginRig is newRig with peers of other hosts.
func newOriginRig(t *testing.T, cfg target.Config, exports ...target.Export) (*rig, *origins) {
	t.Helper()
	o := &origins{Provider: shm.New(shm.Options{}), now: "192.0.2.1"}
	nic, err := via.OpenNic(o, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	cfg.NIC = nic
	return newRig(t, cfg, exports...), o
}

// A peer that is refused its export again and again, or ends its connections by
// errors, does not fill the log.
func TestLinesThatPeersCause(t *testing.T) {
	r, o := newOriginRig(t, target.Config{}, disk(t, "good"))
	const rounds = 100
	for range rounds {
		p := r.peer(t)
		must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
		var a wire.OpenResponse
		must(t, p.ask(&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Name: "none", Mode: wire.OpenReadOnly}, &a))
		if a.Status != wire.StatusNotFound {
			t.Fatalf("got %v", a.Status)
		}
		must(t, p.send([]byte("not a message of the protocol")))
		_, err := p.ends()
		must(t, err)
		must(t, p.close())
	}
	r.reaches(state{opens: "good0 "})
	if lines := strings.Count(r.log.String(), "\n"); lines < 32 || lines > rounds {
		t.Errorf("%d lines of %d connections with two each:\n%s", lines, rounds, r.log)
	}
	// Another host has lines of its own.
	o.from("192.0.2.2")
	p := r.peer(t)
	must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	var a wire.OpenResponse
	must(t, p.ask(&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Name: "none", Mode: wire.OpenReadOnly}, &a))
	if !strings.Contains(r.log.String(), "peer=192.0.2.2:4791") {
		t.Errorf("no line of the other host:\n%s", r.log)
	}
	must(t, p.close())
}

// laterClock is the real scheduler with a clock that is ahead.
type laterClock struct {
	sched.Scheduler
	ahead atomic.Int64
}

func (c *laterClock) Now() time.Time {
	return c.Scheduler.Now().Add(time.Duration(c.ahead.Load()))
}

// A peer that logs in and opens nothing loses its place, and one that opened an
// export does not.
func TestSessionWithoutExportEnds(t *testing.T) {
	clock := &laterClock{Scheduler: sched.Real}
	r, _ := newOriginRig(t, target.Config{KeepAlive: 700 * time.Millisecond, Scheduler: clock}, disk(t, "good"))
	idle, user := r.peer(t), r.peer(t)
	for _, p := range []*peer{idle, user} {
		must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	}
	var a wire.OpenResponse
	must(t, user.ask(&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Name: "good", Mode: wire.OpenReadOnly}, &a))
	if a.Status != wire.StatusOK {
		t.Fatalf("got %v: %s", a.Status, a.Reason)
	}
	stop := make(chan struct{})
	results := make(chan error, 2)
	for _, p := range []*peer{idle, user} {
		go func() { results <- keepAliveUntil(p, stop) }()
	}
	clock.ahead.Store(int64(31 * time.Second))
	if err := <-results; !errors.Is(err, errLost) {
		t.Errorf("the first to end: %v", err)
	}
	waitFor(t, "the reason in the log", func() bool { return strings.Contains(r.log.String(), "opened no export") })
	close(stop)
	must(t, <-results)
	if n := strings.Count(r.log.String(), "connection ended"); n != 1 {
		t.Errorf("%d connections ended:\n%s", n, r.log)
	}
	must(t, user.close())
}

// keepAliveUntil sends keepalives.
func keepAliveUntil(p *peer, stop chan struct{}) error {
	for id := uint32(3); ; id++ {
		select {
		case <-stop:
			return nil
		case <-time.After(5 * time.Millisecond):
		}
		var a wire.KeepAlive
		if err := p.ask(&wire.KeepAlive{ID: id, PathEpoch: 1}, &a); err != nil {
			return err
		}
	}
}

// A host that takes all places it can get shuts out neither another host nor
// the next connection of one that has an export open.
func TestHostThatTakesAllPlaces(t *testing.T) {
	r, o := newOriginRig(t, target.Config{MaxConnections: 64}, disk(t, "good"), disk(t, "other"))
	s := r.attach(t, "good")
	o.from("192.0.2.66")
	for n := 0; ; n++ {
		p, err := connect(r.nic, r.host, nil)
		if errors.Is(err, via.ErrReject) {
			if n != 8 || !strings.Contains(r.log.String(), "without an open export") {
				t.Errorf("one host has %d connections:\n%s", n, r.log)
			}
			break
		}
		must(t, err)
		defer func() { must(t, p.close()) }()
		must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	}
	o.from("192.0.2.2")
	other := r.attach(t, "other")
	o.from("192.0.2.1")
	must(t, r.join(t, s, 2).close())
	must(t, other.close())
	must(t, s.close())
}
