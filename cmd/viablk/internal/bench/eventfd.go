package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// Eventfds are how two processes wake each other with nothing between them: the
// control of the sleeping round trip. They are the caller's.
type Eventfds struct {
	Private int // read here
	Peer    int // read by the other end
}

// bellTimer waits at an eventfd, but not for ever.
type bellTimer struct {
	ctx         context.Context
	hangTimeout time.Duration
	polls       [1]unix.PollFd
	timeout     unix.Timespec
}

// wait sleeps until the own eventfd is written, and takes what was.
func (b *bellTimer) wait(e *Eventfds) error {
	var since time.Time
	for {
		b.polls[0] = unix.PollFd{Fd: int32(e.Private), Events: unix.POLLIN}
		b.timeout = unix.NsecToTimespec(int64(nap))
		n, err := unix.Ppoll(b.polls[:], &b.timeout, nil)
		switch {
		case n == 1:
			eventfd.Drain(e.Private)
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait at an eventfd: %w", err)
		case b.ctx.Err() != nil:
			return context.Cause(b.ctx)
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > b.hangTimeout:
			return fmt.Errorf("no wake-up for %v: %w", b.hangTimeout, errHung)
		}
	}
}

// pingEventfds measures round trips; latencies are stored in nanoseconds.
func pingEventfds(ctx context.Context, e *Eventfds, hangTimeout time.Duration, n int, latency []int64) error {
	b := bellTimer{ctx: ctx, hangTimeout: hangTimeout}
	start := time.Now()
	var last time.Duration
	for i := range n {
		eventfd.Ring(e.Peer)
		if err := b.wait(e); err != nil {
			return err
		}
		now := time.Since(start)
		latency[i] = int64(now - last)
		last = now
	}
	return nil
}

// echoEventfds answers n round trips.
func echoEventfds(ctx context.Context, e *Eventfds, hangTimeout time.Duration, n int) error {
	b := bellTimer{ctx: ctx, hangTimeout: hangTimeout}
	for range n {
		if err := b.wait(e); err != nil {
			return err
		}
		eventfd.Ring(e.Peer)
	}
	return nil
}
