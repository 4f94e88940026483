package sched

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/loop"
)

// Real is the scheduler of the process: Go's goroutines and Linux's clock.
var Real Scheduler = machine{}

type machine struct{}

func (machine) Now() time.Time   { return time.Now() }
func (machine) Go(f func())      { go f() }
func (machine) NewEvent() *Event { return NewEvent(nil) }

func (machine) Drive(t loop.Task) error { return loop.Drive(t) }

func (machine) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (machine) WithCancel(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func (machine) Wait(ctx context.Context, d time.Duration, events ...*Event) {
	var done [MaxEvents]<-chan struct{}
	for i, e := range events {
		if e != nil {
			done[i] = e.done
		}
	}
	var over <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-done[0]:
	case <-done[1]:
	case <-done[2]:
	case <-ctx.Done():
	case <-over:
	}
}

func (machine) Poll(fds []unix.PollFd, d time.Duration) error {
	var limit *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		limit = &t
	}
	_, err := unix.Ppoll(fds, limit, nil)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

func (machine) NewBell() (Bell, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	return bell(fd), nil
}

// bell is an eventfd.
type bell int

func (b bell) FD() int      { return int(b) }
func (b bell) Ring()        { eventfd.Ring(int(b)) }
func (b bell) Drain()       { eventfd.Drain(int(b)) }
func (b bell) Close() error { return eventfd.Close(int(b)) }
