package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/spin"
)

// errHung says that the other end does not do its part.
var errHung = errors.New("the peer hangs, or the fabric lost a message")

const (
	// polls is how many polls pass between two looks at everything else.
	polls = 1 << 12

	// nap bounds one sleep, so that the end of the context is seen.
	nap = 50 * time.Millisecond
)

// source is where an end waits for something: a completion queue, a socket. Arm
// returns false if there is something to look at; else the file descriptor is
// readable when there is.
type source interface {
	Arm() bool
	FD() int
}

// waiter decides what an end does when a poll found nothing.
type waiter struct {
	ctx         context.Context // of this run: the waiter lives as long as it
	source      source
	mode        Wait
	alive       func() error // returns an error if the connection is gone
	spinner     spin.Spinner
	hangTimeout time.Duration // 0 is without end

	// aside, if not nil, is polled when the end is idle: the control connection
	// of the passive end, which is told by it when to stop.
	aside *control

	spinning bool
	found    uint64 // polls that found something
	steps    uint32
	quiet    bool      // nothing was found since the last look at the clock
	since    time.Time // that look, if quiet
	polls    [2]unix.PollFd
	timeout  unix.Timespec
}

// newWaiter returns a waiter that looks for budget before it sleeps, if it is
// to spin.
func newWaiter(ctx context.Context, from source, mode Wait, budget time.Duration) waiter {
	if mode != Spin {
		budget = 0
	}
	return waiter{ctx: ctx, source: from, mode: mode, spinner: spin.New(budget)}
}

// position begins a poll. At times it looks at everything else.
func (w *waiter) step() error {
	w.steps++
	if w.steps%polls != 0 {
		return nil
	}
	return w.check()
}

// busy ends an idleness: a poll found something.
func (w *waiter) busy() {
	w.quiet = false
	w.found++
	if w.spinning {
		w.spinning = false
		w.spinner.Hit()
	}
}

// idle waits a little, or not, after a poll that found nothing. It returns an
// error when there is no point in waiting any longer.
func (w *waiter) idle() error {
	switch w.mode {
	case Poll:
		return nil
	case Spin:
		if !w.spinning {
			w.spinning = w.spinner.Start(false, w.found)
		}
		if w.spinning {
			if w.spinning = w.spinner.Continue(); w.spinning {
				return nil
			}
		}
	}
	return w.sleep()
}

// sleep sleeps until a completion comes, but not for long.
func (w *waiter) sleep() error {
	if !w.source.Arm() {
		return nil
	}
	w.polls[0] = unix.PollFd{Fd: int32(w.source.FD()), Events: unix.POLLIN}
	polls := w.polls[:1]
	if w.aside != nil {
		if !w.aside.arm() {
			return w.check()
		}
		w.polls[1] = unix.PollFd{Fd: int32(w.aside.cq.FD()), Events: unix.POLLIN}
		polls = w.polls[:]
	}
	w.timeout = unix.NsecToTimespec(int64(nap))
	n, err := unix.Ppoll(polls, &w.timeout, nil)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for completions: %w", err)
	}
	if n == 0 || w.polls[1].Revents != 0 {
		w.polls[1].Revents = 0
		return w.check()
	}
	return nil
}

// check looks at everything but completions: the context, the control
// connection and the clock.
func (w *waiter) check() error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if err := w.alive(); err != nil {
		return err
	}
	if w.aside != nil {
		return w.aside.check() // a passive end has all the time until it is told to stop
	}
	now := time.Now()
	if !w.quiet {
		w.quiet, w.since = true, now
	}
	if w.hangTimeout > 0 && now.Sub(w.since) > w.hangTimeout {
		return fmt.Errorf("no progress for %v: %w", w.hangTimeout, errHung)
	}
	return nil
}
