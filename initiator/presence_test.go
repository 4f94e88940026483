package initiator_test

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// hourly is a device with a loss timeout of an hour, whose clock the test
// moves on.
func hourly(clock *shifted) func(*initiator.Config) {
	return func(c *initiator.Config) {
		lasting(time.Hour)(c)
		c.Scheduler, c.Timeout = clock, time.Second
	}
}

// waits expects that the requests of a queue wait for the target, however long
// that takes.
func waits(t *testing.T, clock *shifted, d *initiator.Device, q *initiator.Queue) {
	t.Helper()
	for range 5 {
		clock.by.Add(int64(2 * time.Hour))
		for range 10 {
			if q.Reap(make([]*block.Request, 1)) != 0 {
				t.Fatal("a request of a target that is there is answered")
			}
		}
		if st := d.Status(); st.State == initiator.StateFailed {
			t.Fatalf("status %+v", st)
		}
	}
}

// hang starts a write that hangs in the disk.
func hang(t *testing.T, g *gate, q *initiator.Queue) {
	t.Helper()
	submit(t, q, request(block.Write, 0, 4096))
	waitFor(t, "the write", func() bool { must(t, drive(q)); return len(g.began) > 0 })
}

// begin calls f on a goroutine, and closes the channel at its end.
func begin(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// TestLossAmidASlowRequest: a session is lost while its write hangs in the
// disk, and the target admits no other one until the disk has answered. The
// write waits, also for longer than the loss timeout, and succeeds.
func TestLossAmidASlowRequest(t *testing.T) {
	g, clock := newGate(), &shifted{Scheduler: sched.Real}
	r := newGated(t, g)
	host := filepath.Join(t.TempDir(), "once.sock")
	stop := r.second(t, host)
	d := r.dial(t, "a", func(c *initiator.Config) {
		hourly(clock)(c)
		c.Host = host
	})
	q := open(t, d, 4)
	hang(t, g, q)
	stopped := begin(stop) // waits for the disk
	waitFor(t, "the loss", func() bool { q.Reap(nil); return !d.Status().Connected })
	defer r.second(t, host)()
	waitFor(t, "the refusal", func() bool {
		q.Reap(nil)
		return strings.Contains(d.Status().Error, "the disk is in use")
	})
	waits(t, clock, d, q)
	close(g.pass)
	wantAll(t, q, 1, 0)
	<-stopped
	if st := d.Status(); st.SessionLosses != 1 || g.writes.Load() != 2 {
		t.Errorf("%d losses, %d writes", st.SessionLosses, g.writes.Load())
	}
}

// TestRejections: a target that rejects connections because it is full is
// there, and requests wait for any time. One that leaves is away. One that
// gives no reason, as targets of before do, is there unless it drained.
func TestRejections(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason byte
		waits  bool
		status string
	}{
		{"full", wire.RejectFull, true, "no place for another connection"},
		{"leaving", wire.RejectLeaving, false, ""},
		{"no reason", 0, true, ""},
		{"unknown reason", 200, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x deaf
			var rejected atomic.Int32
			var over atomic.Bool
			p := x.play()
			p.reject = func() (byte, bool) {
				if x.sessions.Load() == 0 || over.Load() {
					return 0, false
				}
				return c.reason, len(x.commands()) > 0 && rejected.Add(1) > 0
			}
			clock := &shifted{Scheduler: sched.Real}
			d := newStage(t, p).dialWith(t, hourly(clock))
			q := open(t, d, 8)
			submit(t, q, request(block.Write, 0, 4096))
			x.waitForCommand(t, "1 write 0")
			cut(t, q)
			waitFor(t, "a rejection", func() bool {
				q.Reap(nil)
				return rejected.Load() > 1 && strings.Contains(d.Status().Error, c.status)
			})
			if c.waits {
				waits(t, clock, d, q)
				over.Store(true)
				wantAll(t, q, 2, 0)
				return
			}
			clock.by.Add(int64(2 * time.Hour))
			wantAll(t, q, 2, syscall.EIO)
		})
	}
}

// TestFenceAmidASlowRequest: likewise a path that is lost, which the target
// fences when the disk has answered.
func TestFenceAmidASlowRequest(t *testing.T) {
	g, clock := newGate(), &shifted{Scheduler: sched.Real}
	r := newGated(t, g)
	host := filepath.Join(t.TempDir(), "first.sock")
	stop := r.second(t, host)
	d := r.dial(t, "a", func(c *initiator.Config) {
		hourly(clock)(c)
		c.Host, c.OtherHosts = host, []string{r.host}
	})
	waitFor(t, "both paths", func() bool { return states(d) == [2]initiator.PathState{initiator.PathUp, initiator.PathUp} })
	q := open(t, d, 4)
	hang(t, g, q)
	stopped := begin(stop) // waits for the disk
	waitFor(t, "the loss of the path", func() bool { q.Reap(nil); return d.Status().Paths[0].Queues == 0 && states(d)[0] == initiator.PathLost })
	waits(t, clock, d, q)
	close(g.pass)
	wantAll(t, q, 1, 0)
	<-stopped
	if st := d.Status(); st.SessionLosses != 0 || g.writes.Load() != 2 {
		t.Errorf("%d losses, %d writes", st.SessionLosses, g.writes.Load())
	}
}

// TestLogoutOfASlowDisk: a target that drains may have to flush for longer than
// it takes to connect. It answers keepalives, so the initiator waits for the
// answer to its logout, which says that everything is durable.
func TestLogoutOfASlowDisk(t *testing.T) {
	var opens, keepalives atomic.Int32
	var drains, told, flushed atomic.Bool
	var logout atomic.Uint32 // ID of the logout that waits; 0: none
	s := newStage(t, play{
		millis: 50,
		open:   func(a *wire.OpenResponse) { a.Verifier = uint64(opens.Add(1)) },
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, err := wire.PeekControl(msg)
			switch {
			case err != nil:
				return false
			case op == wire.OpEventAck:
				return true
			case op == wire.OpLogout && drains.Load() && e.role == wire.RoleControl:
				logout.Store(h.ID)
				return true
			}
			return e.obey(op, h, msg)
		},
		keepalive: func(e *end) bool {
			if e.acknowledge(); e.role != wire.RoleControl {
				return true
			}
			keepalives.Add(1)
			if drains.Load() && !told.Swap(true) {
				e.sendControl(&wire.Event{ID: 1, PathEpoch: 1, Kind: wire.EventGoAway})
			}
			if id := logout.Load(); id != 0 && flushed.Load() {
				drains.Store(false)
				logout.Store(0)
				e.sendControl(&wire.LogoutResponse{ID: id, PathEpoch: 1, Durable: true})
			}
			return true
		},
	})
	d := s.dialWith(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Timeout = time.Second
	})
	q := open(t, d, 4)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	drains.Store(true)
	waitFor(t, "the logout", func() bool { must(t, drive(q)); return logout.Load() != 0 })
	enough := keepalives.Load() + 40 // twice the timeout
	waitFor(t, "keepalives", func() bool { q.Reap(nil); return keepalives.Load() >= enough })
	flushed.Store(true)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	if n := opens.Load(); n != 2 || d.Err() != nil {
		t.Errorf("opened %d times: %v", n, d.Err())
	}
}

// TestOpenOfASlowDisk: a target that is back answers keepalives and not the
// open, because its disk is slow. Requests wait for it.
func TestOpenOfASlowDisk(t *testing.T) {
	var lost, answers atomic.Bool
	clock := &shifted{Scheduler: sched.Real}
	s := newStage(t, play{
		millis: 50,
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, err := wire.PeekControl(msg)
			if err == nil && op == wire.OpOpen && lost.Load() && !answers.Load() {
				return true
			}
			return err == nil && e.obey(op, h, msg)
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if cmd.Opcode == wire.OpWrite && !lost.Swap(true) {
				return false
			}
			e.answer(cmd)
			return true
		},
	})
	d := s.dialWith(t, hourly(clock))
	q := open(t, d, 4)
	submit(t, q, request(block.Write, 0, 4096))
	waitFor(t, "the end of an attempt", func() bool {
		q.Reap(nil)
		return strings.Contains(d.Status().Error, "has not opened the disk yet")
	})
	waits(t, clock, d, q)
	answers.Store(true)
	wantAll(t, q, 1, 0)
}
