package target_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// unproven is a provider whose requests are confirmed when the test says so.
type unproven struct {
	via.Provider
	waiting chan context.Context // of a Confirm
	answer  chan error           // of the next one
}

func (u *unproven) Open(device string) (via.Adapter, error) {
	a, err := u.Provider.Open(device)
	return unprovenAdapter{a, u}, err
}

type unprovenAdapter struct {
	via.Adapter
	u *unproven
}

func (a unprovenAdapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(unprovenRequest{in, a.u}) })
}

type unprovenRequest struct {
	via.Incoming
	u *unproven
}

func (r unprovenRequest) Confirm(ctx context.Context, _ []byte, _ via.ReliabilityLevel) error {
	r.u.waiting <- ctx
	err := <-r.u.answer
	if err != nil {
		_ = r.Refuse(nil) // the requester may be gone
	}
	return err
}

// A request has neither VI nor memory before it is confirmed, and is served as
// any other then.
func TestRequestsBeforeTheirConfirmation(t *testing.T) {
	u := &unproven{shm.New(shm.Options{}), make(chan context.Context), make(chan error)}
	nic, err := via.OpenNic(u, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	r := newRig(t, target.Config{NIC: nic}, disk(t, "good"))
	type result struct {
		p   *peer
		err error
	}
	const requests = 16
	calls := nic.Agent().Objects.Load() + nic.Agent().Registrations.Load()
	results := make(chan result, requests)
	for range requests {
		go func() {
			p, err := connect(r.nic, r.host, nil)
			results <- result{p, err}
		}()
	}
	for range requests {
		if end, ok := (<-u.waiting).Deadline(); !ok || time.Until(end) > 5*time.Second {
			t.Errorf("a confirmation may last until %v", end)
		}
	}
	if n := r.server.Status().Connections; n != requests {
		t.Errorf("%d connections", n)
	}
	if now := nic.Agent().Objects.Load() + nic.Agent().Registrations.Load(); now != calls {
		t.Errorf("%d objects and registrations before a confirmation", now-calls)
	}
	lost := errors.New("the peer confirms nothing")
	for range requests / 2 {
		u.answer <- lost
	}
	for range requests / 2 {
		if x := <-results; !errors.Is(x.err, via.ErrReject) {
			t.Errorf("a request that is not confirmed: %v", x.err)
		}
	}
	waitFor(t, "the end of the requests", func() bool { return r.server.Status().Connections == requests/2 })
	if !strings.Contains(r.log.String(), lost.Error()) {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
	for range requests / 2 {
		u.answer <- nil
	}
	for range requests / 2 {
		x := <-results
		must(t, x.err)
		must(t, x.p.login(x.p.loginRequest(wire.RoleControl, newID(), 0)))
		must(t, x.p.close())
	}
}
