package initiator_test

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// shifted is a scheduler whose clock the test moves on.
type shifted struct {
	sched.Scheduler
	by atomic.Int64
}

func (s *shifted) Now() time.Time { return s.Scheduler.Now().Add(time.Duration(s.by.Load())) }

// awaitEnd waits until a call returns.
func awaitEnd(t *testing.T, what string, call func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(testTimeout):
		t.Fatalf("%s does not end", what)
	}
}

// returning is a target that loses its first connections at a Flush. When and
// how later ones may log in is up to the test. It keeps connections for I/O
// whose session has ended, which a good target does not.
type returning struct {
	*stage
	control, io     chan struct{} // closed: later logins are answered
	refuse          atomic.Bool   // later logins for I/O are refused
	refusal         wire.LoginReason
	asked           atomic.Int32 // control logins
	controls, ios   atomic.Int32 // logins that were answered
	refused, silent atomic.Int32 // logins for I/O; Reads that get no answer
	cut             atomic.Bool
}

func newReturning(t *testing.T, millis uint32) *returning {
	r := &returning{control: make(chan struct{}), io: make(chan struct{}), refusal: wire.ReasonResources}
	r.stage = newStage(t, play{
		millis: millis,
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			gate, count := r.control, &r.controls
			if q.Role == wire.RoleIO {
				gate, count = r.io, &r.ios
			} else {
				r.asked.Add(1)
			}
			if r.cut.Load() {
				<-gate
			}
			if q.Role == wire.RoleIO && r.cut.Load() && r.refuse.Load() {
				a.Status, a.Reason = wire.StatusNoMemory, r.refusal
				r.refused.Add(1)
			}
			e.sendControl(a)
			count.Add(1)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if cmd.Opcode == wire.OpFlush && r.cut.CompareAndSwap(false, true) {
				return false
			}
			if cmd.Opcode == wire.OpRead && cmd.Offset != 0 {
				r.silent.Add(1)
				return true
			}
			e.answer(cmd)
			return true
		},
	})
	t.Cleanup(r.back)
	return r
}

// back lets later logins through.
func (r *returning) back() {
	for _, c := range []chan struct{}{r.control, r.io} {
		select {
		case <-c:
		default:
			close(c)
		}
	}
}

// lose makes the target lose its connections, with a Flush in flight.
func (r *returning) lose(t *testing.T, q block.Queue) {
	t.Helper()
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	submit(t, q, request(block.Flush, 0, 0))
}

// TestCloseWhileRefused: a queue that the target does not take back closes.
func TestCloseWhileRefused(t *testing.T) {
	r := newReturning(t, 0)
	r.refuse.Store(true)
	d := r.dialWith(t, lasting(initiator.Forever))
	q, err := d.NewQueue(4)
	must(t, err)
	r.lose(t, q)
	r.back()
	waitFor(t, "the refusal", func() bool {
		q.Reap(nil)
		return r.refused.Load() > 0
	})
	awaitEnd(t, "Close", q.Close)
}

// TestQueueReturnsAfterTheTimeout: when the loss timeout is over and the target
// is back, the first request of an idle queue succeeds; a queue whose
// connection is not there yet waits for it, unless the target refuses it for
// good: then for a loss timeout at most.
func TestQueueReturnsAfterTheTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		refused, waits bool // the later logins for I/O are, or are held up
		passes         bool // the reason of the refusal
	}{"connected": {}, "connecting": {waits: true}, "refused": {refused: true}, "no room": {refused: true, passes: true}} {
		t.Run(name, func(t *testing.T) {
			r := newReturning(t, 0)
			if c.refused && !c.passes {
				r.refusal = wire.ReasonRole
			}
			clock := &shifted{Scheduler: sched.Real}
			d := r.dialWith(t, func(c *initiator.Config) {
				lasting(time.Hour)(c)
				c.Scheduler = clock
			})
			q := open(t, d, 4)
			r.lose(t, q)
			waitFor(t, "the loss", func() bool {
				q.Reap(nil)
				return r.asked.Load() == 2 // the session before is logged out
			})
			clock.by.Add(int64(2 * time.Hour))
			wantAll(t, q, 1, syscall.EIO)
			submit(t, q, request(block.Write, 0, 4096))
			wantAll(t, q, 1, syscall.EIO)

			r.refuse.Store(c.refused)
			close(r.control)
			waitFor(t, "the session", func() bool { return d.Status().Connected })
			if !c.waits {
				before := r.ios.Load()
				close(r.io)
				waitFor(t, "the login", func() bool { return r.ios.Load() > before })
			}
			submit(t, q, request(block.Write, 0, 4096))
			if c.waits || c.passes {
				waits(t, clock, d, q)
			} else if c.refused {
				if q.Reap(make([]*block.Request, 1)) != 0 {
					t.Fatal("a request does not wait for its connection")
				}
			}
			switch {
			case c.waits:
				close(r.io)
			case c.passes:
				r.refuse.Store(false)
			case c.refused:
				var one [1]*block.Request
				waitFor(t, "the end of the loss timeout", func() bool { // it runs once the refusal is noted
					clock.by.Add(int64(2 * time.Hour))
					return q.Reap(one[:]) != 0
				})
				if got := block.Errno(one[0].Err); got != syscall.EIO {
					t.Errorf("a request that the target refuses for good: %v", one[0].Err)
				}
				return
			}
			wantAll(t, q, 1, 0)
		})
	}
}

// armed returns how long the owner of a queue that answers nothing may sleep.
func armed(t *testing.T, q block.Queue) time.Duration {
	t.Helper()
	for done := make([]*block.Request, 1); q.Reap(done) == 0; {
		if wait, ok := q.Arm(); ok {
			return wait
		}
	}
	t.Fatal("the queue answers a request")
	return 0
}

// TestOwnerSleepsToTheLossTimeout: while the target is away, only the end of
// the loss timeout ends the sleep of an owner whose requests wait, and nothing
// that of one without requests.
func TestOwnerSleepsToTheLossTimeout(t *testing.T) {
	x, clock := deaf{refuse: true}, &shifted{Scheduler: sched.Real}
	d := newStage(t, x.play()).dialWith(t, hourly(clock))
	q := open(t, d, 8)
	submit(t, q, request(block.Write, 0, 4096))
	x.waitForCommand(t, "1 write 0")
	cut(t, q)
	waitFor(t, "the loss", func() bool {
		q.Reap(nil)
		return q.Err() != nil && x.sessions.Load() > 1 // the session before is logged out
	})
	if wait := armed(t, q); wait <= 0 || wait > time.Hour {
		t.Errorf("the owner sleeps for %v, and the loss timeout is an hour", wait)
	}
	clock.by.Add(int64(30 * time.Minute))
	if wait := armed(t, q); wait <= 0 || wait > 30*time.Minute {
		t.Errorf("the owner sleeps for %v when half of an hour has passed", wait)
	}
	clock.by.Add(int64(2 * time.Hour))
	if wait, ok := q.Arm(); ok {
		t.Errorf("the owner sleeps for %v after the loss timeout", wait)
	}
	wantAll(t, q, 2, syscall.EIO)
	if wait := armed(t, q); wait >= 0 {
		t.Errorf("the owner of a queue without requests sleeps for %v", wait)
	}
}

// TestCloseEndsCalls: Device.Close ends calls in progress that the target does
// not answer, or that wait for a target.
func TestCloseEndsCalls(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r := newReturning(t, 200)
		d := r.dialWith(t, func(c *initiator.Config) {
			lasting(initiator.Forever)(c)
			c.Timeout = 2 * time.Second
		})
		var wg sync.WaitGroup
		defer wg.Wait()
		var err error
		if lost {
			wg.Go(func() { err = d.Sync() })
			waitFor(t, "the loss", func() bool { return !d.Status().Connected })
		} else {
			wg.Go(func() { _, err = d.ReadAt(make([]byte, 4096), 4096) })
			waitFor(t, "the read", func() bool { return r.silent.Load() > 0 })
		}
		awaitEnd(t, "Close", d.Close)
		r.back()
		if wg.Wait(); err == nil {
			t.Errorf("lost %v: the call succeeds", lost)
		}
	}
}
