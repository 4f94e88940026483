package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
)

// attemptLog counts the attempts to reach a lost target that failed.
type attemptLog struct {
	slog.Handler
	failed *atomic.Int64
}

func (l attemptLog) Enabled(context.Context, slog.Level) bool { return true }

func (l attemptLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" && a.Value.String() == "reconnect_failed" {
			l.failed.Add(1)
		}
		return true
	})
	return nil
}

func (l attemptLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// sleepyOwner drives a queue with one write at a time. It sleeps as long as the
// queue lets it.
type sleepyOwner struct {
	queue  block.Queue
	ends   atomic.Bool  // it submits no more
	writes atomic.Int64 // that were answered
	apart  atomic.Int64 // sleeps without a connection
}

func (o *sleepyOwner) run() error {
	write := &block.Request{Op: block.Write, Length: 4096, Data: make([]byte, 4096)}
	for done := make([]*block.Request, 1); !o.ends.Load(); {
		if !o.queue.Submit(write) {
			return errors.New("the queue refuses a write")
		}
		o.queue.Kick()
		for o.queue.Reap(done) == 0 {
			if err := o.sleep(); err != nil {
				return err
			}
		}
		if write.Err != nil {
			return write.Err
		}
		o.writes.Add(1)
	}
	return nil
}

func (o *sleepyOwner) sleep() error {
	d, ok := o.queue.Arm()
	if !ok {
		return nil
	}
	if o.queue.(*initiator.Queue).Err() != nil {
		o.apart.Add(1)
	}
	if d < 0 {
		d = testbed.ToolLimit
	}
	fds := []unix.PollFd{{Fd: int32(o.queue.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(d.Milliseconds())+1)
	for errors.Is(err, unix.EINTR) { // the runtime's signals
		n, err = unix.Poll(fds, int(d.Milliseconds())+1)
	}
	if n == 0 && err == nil && d == testbed.ToolLimit {
		return fmt.Errorf("nothing has woken the owner for %v", d)
	}
	return err
}

// TestOwnerSleepsUntilTheTargetReturns: the owner of a queue whose target is
// away falls asleep once, with a request that waits, however many attempts
// there are to reach the target, and the connection wakes it.
func TestOwnerSleepsUntilTheTargetReturns(t *testing.T) {
	t.Parallel()
	for name, fabric := range testbed.Fabrics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &replaced{fabric: fabric, host: fabric.Host(t), disk: openBackend(t, "file:"+testbed.SparseFile(t, 1<<20))}
			r.start(t)
			nic := openNIC(t, fabric)
			var attempts atomic.Int64
			d, err := initiator.Dial(t.Context(), initiator.Config{
				NIC: nic, Host: r.host, LossTimeout: initiator.Forever, ReconnectDelay: 10 * time.Millisecond,
				Log: slog.New(attemptLog{slog.DiscardHandler, &attempts}),
			})
			testbed.Must(t, err)
			q, err := d.NewQueue(1)
			testbed.Must(t, err)
			owner, ended := &sleepyOwner{queue: q}, make(chan error, 1)
			go func() { ended <- owner.run() }()
			for absences := int64(1); absences <= 3; absences++ {
				writes := owner.writes.Load()
				testbed.Eventually(t, "writes", func() (any, bool) { n := owner.writes.Load(); return n, n > writes+1 })
				r.stop(t)
				testbed.Eventually(t, "the owner to sleep", func() (any, bool) { n := owner.apart.Load(); return n, n >= absences })
				before := attempts.Load()
				testbed.Eventually(t, "attempts", func() (any, bool) { n := attempts.Load(); return n, n >= before+20 })
				if n := owner.apart.Load(); n != absences {
					t.Errorf("%d sleeps in %d absences", n, absences)
				}
				r.start(t)
			}
			writes := owner.writes.Load()
			testbed.Eventually(t, "the owner to wake", func() (any, bool) { n := owner.writes.Load(); return n, n > writes+1 })
			owner.ends.Store(true)
			testbed.Must(t, <-ended)
			testbed.Must(t, errors.Join(q.Close(), d.Close()))
			r.stop(t)
			testbed.Must(t, errors.Join(nic.Close(), r.disk.Close()))
		})
	}
}
