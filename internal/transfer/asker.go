package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// asker runs one request at a time.
type asker struct {
	queue block.Queue
	wake  int // eventfd: the transfer is cancelled
}

// do runs a request, whose result is in r. It fails only if ctx ends: the
// request may then be in flight until the queue is closed.
func (a *asker) do(ctx context.Context, r *block.Request) error {
	if !a.queue.Submit(r) {
		return fmt.Errorf("%v at %d: %w", r.Op, r.Offset, unix.EBUSY)
	}
	a.queue.Kick()
	var done [1]*block.Request
	for a.queue.Reap(done[:]) == 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		sleep(a.wake, a.queue)
	}
	return nil
}

// sleep waits until Reap of one of the queues has something to do, or the
// eventfd is readable.
func sleep(wake int, queues ...block.Queue) {
	var memory [3]unix.PollFd
	poll := append(memory[:0], unix.PollFd{Fd: int32(wake), Events: unix.POLLIN})
	var timeout *unix.Timespec
	least := time.Duration(-1)
	for _, q := range queues {
		d, ok := q.Arm()
		if !ok {
			return
		}
		if d >= 0 && (least < 0 || d < least) {
			least = d
		}
		poll = append(poll, unix.PollFd{Fd: int32(q.FD()), Events: unix.POLLIN})
	}
	if least >= 0 {
		t := unix.NsecToTimespec(int64(least))
		timeout = &t
	}
	if _, err := unix.Ppoll(poll, timeout, nil); err != nil && err != unix.EINTR {
		time.Sleep(time.Millisecond) // requests are in flight: only waiting is safe
	}
}
