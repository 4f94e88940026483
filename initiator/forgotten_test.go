package initiator_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// movable is a provider whose connections go where the test says: a connection
// that exists does not notice that its target has been started again.
type movable struct {
	via.Provider
	to atomic.Pointer[string]
}

func (p *movable) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return &movableAdapter{a, p}, err
}

type movableAdapter struct {
	via.Adapter
	provider *movable
}

func (a *movableAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	if to := a.provider.to.Load(); to != nil {
		host = *to
	}
	return a.Adapter.Connect(ctx, host, hello, cfg)
}

// again starts the target once more, at another address: it knows no session.
func (r *remote) again(t *testing.T) *remote {
	t.Helper()
	other := &remote{host: filepath.Join(t.TempDir(), "again.sock"), cfg: r.cfg, folder: r.folder}
	if r.folder != "" {
		other.cfg.Security = targetSecurity(t, r.folder)
	}
	other.start(t)
	t.Cleanup(func() { other.stop() })
	return other
}

// TestTargetForgotSession: a target that was started again refuses the
// connections of a session whose control connection has not noticed. That is
// the loss of the session: a new queue opens in the next one, and so does one
// that lost its connection.
func TestTargetForgotSession(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			r := serve(t, quiet, fileSpec(t, 16<<20))
			p := &movable{Provider: shm.New(shm.Options{})}
			nic, err := via.OpenNic(p, "")
			must(t, err)
			nic.ErrorCallback(func(via.AsyncError) {})
			t.Cleanup(func() { must(t, nic.Close()) })
			cfg := initiator.Config{
				NIC: nic, Host: r.host, Export: "a", Digest: r.digest, Log: slog.New(slog.DiscardHandler), ReconnectDelay: time.Millisecond, LossTimeout: initiator.Forever,
			}
			if r.folder != "" {
				cfg.Security = initiatorSecurity(r.folder, "alice", targetName)
			}
			d, err := initiator.Dial(context.Background(), cfg)
			must(t, err)
			t.Cleanup(func() { must(t, d.Close()) })
			q := open(t, d, 4)
			transfers(t, q)
			r2 := r.again(t)
			p.to.Store(&r2.host)
			q2 := open(t, d, 4)
			transfers(t, q2)
			transfers(t, q)
			if st := d.Status(); st.SessionLosses != 1 || st.State != initiator.StateConnected || r2.server.Status().Sessions != 1 {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// TestForgottenSessionIsNotLoggedOut: a target that forgot a session may never
// answer on its control connection, so that the next session does not wait for
// that.
func TestForgottenSessionIsNotLoggedOut(t *testing.T) {
	var first atomic.Pointer[wire.LoginRequest]
	var control atomic.Pointer[end]
	var refused, logouts atomic.Int32
	s := newStage(t, play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if first.CompareAndSwap(nil, q) {
				control.Store(e)
			}
			if q.Role == wire.RoleIO && q.SessionID == first.Load().SessionID {
				a.Status, a.Reason = wire.StatusNotFound, wire.ReasonSession
				refused.Add(1)
			}
			e.sendControl(a)
			return true
		},
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			if op == wire.OpLogout && e == control.Load() {
				logouts.Add(1)
				return true
			}
			h, err := wire.PeekControl(msg)
			return err == nil && e.obey(op, h, msg)
		},
	})
	d := s.dialWith(t, func(c *initiator.Config) { c.Timeout = testTimeout; lasting(initiator.Forever)(c) })
	q, err := d.NewQueue(4)
	must(t, err)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	if refused.Load() != 1 || logouts.Load() != 0 {
		t.Errorf("%d connections are refused, %d logouts", refused.Load(), logouts.Load())
	}
	must(t, q.Close())
}
