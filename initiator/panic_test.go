package initiator_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// panickyProvider is a provider whose completion queues panic when a message of
// the peer is taken from them: the message is lost, as one amid whose handling
// code panics.
type panickyProvider struct {
	via.Provider
	armed atomic.Int32 // messages to come, the last of which panics; 0 none
}

func (p *panickyProvider) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return &panickyAdapter{a, p}, err
}

type panickyAdapter struct {
	via.Adapter
	provider *panickyProvider
}

func (a *panickyAdapter) NewCQ(entries int) (via.AdapterCQ, error) {
	q, err := a.Adapter.NewCQ(entries)
	return &panickyCQ{q, a.provider}, err
}

func (a *panickyAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*panickyCQ).AdapterCQ, cfg.RecvCQ.(*panickyCQ).AdapterCQ
	return a.Adapter.Connect(ctx, host, hello, cfg)
}

type panickyCQ struct {
	via.AdapterCQ
	provider *panickyProvider
}

func (q *panickyCQ) Poll(dst []via.Done) int {
	n := q.AdapterCQ.Poll(dst)
	for i := range dst[:n] {
		if w := dst[i].Work; w != nil && w.Op == via.OpRecv && q.provider.armed.Load() > 0 && q.provider.armed.Add(-1) == 0 {
			panic("planted in Poll")
		}
	}
	return n
}

// arm has the n-th message from now on panic.
func (p *panickyProvider) arm(n int32) { p.armed.Store(n) }

// panicky returns how a device attaches whose provider panics when it is armed,
// and what it logs.
func panicky(t *testing.T, r *remote) (*panickyProvider, *book, initiator.Config) {
	t.Helper()
	p := &panickyProvider{Provider: shm.New(shm.Options{})}
	nic, err := via.OpenNic(p, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	t.Cleanup(func() { must(t, nic.Close()) }) // fails if a connection is left
	log := new(book)
	cfg := initiator.Config{NIC: nic, Host: r.host, Export: "a", Digest: r.digest, Log: slog.New(slog.NewTextHandler(log, nil)), ReconnectDelay: time.Millisecond}
	if r.folder != "" {
		cfg.Security = initiatorSecurity(r.folder, "alice", targetName)
	}
	return p, log, cfg
}

// quiet is a target that sends no keepalives in a test.
var quiet = target.Config{KeepAlive: time.Minute}

// transfers checks that a queue moves data.
func transfers(t *testing.T, q block.Queue) {
	t.Helper()
	for _, n := range []int64{4096, 256 << 10} {
		submit(t, q, request(block.Write, 0, n), request(block.Read, 1<<20, n))
		wantAll(t, q, 2, 0)
	}
}

// wantPanic checks that the log tells of a panic, and where, as far as the
// limit for all panics of the process lets it.
func wantPanic(t *testing.T, log *book) {
	t.Helper()
	text := log.String()
	if contain.Count() < 32 && (!strings.Contains(text, "level=ERROR") || !strings.Contains(text, "planted in Poll") || !strings.Contains(text, "panickyCQ")) {
		t.Errorf("no panic with its stack in %s", text)
	}
}

// TestPanicInQueue: a panic while a queue handles a message of the target fails
// the requests of this queue. Other queues, the session and other devices go
// on, and nothing of the queue is left at either end.
func TestPanicInQueue(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			r := serve(t, quiet, "memory:16MiB", "memory:16MiB")
			p, log, cfg := panicky(t, r)
			cfg.LossTimeout = time.Minute
			d, err := initiator.Dial(context.Background(), cfg)
			must(t, err)
			other := open(t, r.dial(t, "b", nil), 4)
			beside := open(t, d, 4)
			transfers(t, beside)
			base := r.server.Status().Connections
			before := contain.Count()
			for round := range 3 {
				q, err := d.NewQueue(8)
				must(t, err)
				transfers(t, q)
				held := &block.Request{Op: block.Read, Length: 64 << 10}
				if !q.Reserve(held) {
					t.Fatal("nothing is reserved")
				}
				p.arm(int32(1 + round))
				for i := range int64(6) {
					submit(t, q, request(block.Write, i<<20, 4096<<(2*(i%3))))
				}
				submit(t, q, held)
				rs, err := reap(q, 7)
				must(t, err)
				failed := 0
				for _, x := range rs {
					if x.Err != nil {
						failed++
					}
				}
				if failed == 0 || p.armed.Load() != 0 {
					t.Errorf("%d requests failed", failed)
				}
				q.Release(held)
				submit(t, q, request(block.Flush, 0, 0)) // it does not come back
				wantAll(t, q, 1, syscall.EIO)
				transfers(t, beside)
				transfers(t, other)
				must(t, q.Close())
				waitFor(t, "the target to release the connection", func() bool { return r.server.Status().Connections == base })
			}
			if n := contain.Count() - before; n != 3 {
				t.Errorf("%d panics", n)
			}
			q := open(t, d, 8)
			transfers(t, q)
			if st := d.Status(); st.State != initiator.StateConnected || st.SessionLosses != 0 || st.Quarantine != nil {
				t.Errorf("status %+v", st)
			}
			t.Cleanup(func() { must(t, d.Close()) })
			wantPanic(t, log)
		})
	}
}

// TestPanicInControl: a panic while the control connection handles a message
// ends the session. A device that reconnects has another one; one that does not
// has failed, and says why.
func TestPanicInControl(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			r := serve(t, target.Config{KeepAlive: 150 * time.Millisecond}, "memory:16MiB", "memory:16MiB")
			p, log, cfg := panicky(t, r)
			other := open(t, r.dial(t, "b", nil), 4)
			cfg.LossTimeout = time.Minute
			d, err := initiator.Dial(context.Background(), cfg)
			must(t, err)
			for losses := range uint64(3) {
				p.arm(1)
				waitFor(t, "the next session", func() bool {
					st := d.Status()
					return st.SessionLosses > losses && st.State == initiator.StateConnected
				})
				q, err := d.NewQueue(4)
				must(t, err)
				transfers(t, q)
				must(t, q.Close())
			}
			transfers(t, other)
			must(t, d.Close())
			wantPanic(t, log)

			cfg.LossTimeout = 0
			d, err = initiator.Dial(context.Background(), cfg)
			must(t, err)
			p.arm(1)
			<-d.Done()
			if st := d.Status(); st.State != initiator.StateFailed || !strings.Contains(st.Error, "planted in Poll") {
				t.Errorf("status %+v", st)
			}
			if err := d.Err(); err == nil || !strings.Contains(err.Error(), "planted in Poll") {
				t.Errorf("the device: %v", err)
			}
			must(t, d.Close())
			transfers(t, other)
			waitFor(t, "the target to release the sessions", func() bool { return r.server.Status().Sessions == 1 })
		})
	}
}

// TestPanicInLogin: a panic while a connection is made is an error of the
// caller's, and leaves no connection; while a lost one is made again, it is an
// attempt that failed.
func TestPanicInLogin(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			r := serve(t, quiet, fileSpec(t, 16<<20)) // it outlives a target
			p, log, cfg := panicky(t, r)
			ctx := context.Background()
			calls := map[string]func() error{
				"dial":     func() error { _, err := initiator.Dial(ctx, cfg); return err },
				"discover": func() error { _, err := initiator.Discover(ctx, cfg); return err },
			}
			for what, call := range calls {
				for n := range int32(2) {
					p.arm(1 + n)
					if err := call(); err == nil || !strings.Contains(err.Error(), "planted in Poll") {
						t.Errorf("%s, message %d: %v", what, n, err)
					}
				}
			}
			waitFor(t, "the target to release the connections", func() bool { return r.server.Status().Connections == 0 })
			cfg.LossTimeout = time.Minute
			d, err := initiator.Dial(ctx, cfg)
			must(t, err)
			t.Cleanup(func() { must(t, d.Close()) })
			p.arm(1)
			if _, err := d.NewQueue(4); err == nil || !strings.Contains(err.Error(), "planted in Poll") {
				t.Errorf("new queue: %v", err)
			}
			q := open(t, d, 4)
			transfers(t, q)
			// The login, the open, the login of the queue; sealed, its first.
			for n := range int32(3) {
				r.stop()
				submit(t, q, request(block.Write, 0, 4096))
				waitFor(t, "the loss", func() bool { q.Reap(nil); return d.Status().State == initiator.StateWaiting })
				p.arm(1 + n)
				r.start(t)
				wantAll(t, q, 1, 0)
				if p.armed.Load() > 0 {
					t.Errorf("message %d: no panic", n)
				}
			}
			transfers(t, q)
			wantPanic(t, log)
		})
	}
}
