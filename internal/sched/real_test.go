package sched_test

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/sched"
)

// Every way in which a Wait ends.
func TestWaitEnds(t *testing.T) {
	s := sched.Real
	never := s.NewEvent()
	set := s.NewEvent()
	set.Set()
	set.Set()
	if !set.IsSet() || never.IsSet() {
		t.Error("IsSet does not follow Set")
	}
	s.Wait(t.Context(), -1, nil, never, set)
	ctx, cancel := s.WithCancel(t.Context())
	cancel()
	s.Wait(ctx, -1, never)
	ctx, cancel = s.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s.Wait(ctx, -1, never)
	if ctx.Err() != context.DeadlineExceeded {
		t.Errorf("the wait ended before its context: %v", ctx.Err())
	}
	began := s.Now()
	s.Wait(t.Context(), time.Millisecond)
	if d := s.Now().Sub(began); d < time.Millisecond {
		t.Errorf("a wait of a millisecond ended after %v", d)
	}
	later := s.NewEvent()
	s.Go(later.Set)
	s.Wait(t.Context(), -1, later)
	<-later.Done()
}

func TestPollEndsWithBell(t *testing.T) {
	s := sched.Real
	b, err := s.NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fds := []unix.PollFd{{Fd: int32(b.FD()), Events: unix.POLLIN}}
	if err := s.Poll(fds, 0); err != nil || fds[0].Revents != 0 {
		t.Fatalf("a new bell: %v, events %#x", err, fds[0].Revents)
	}
	s.Go(b.Ring)
	for fds[0].Revents == 0 { // a signal may end a Poll
		if err := s.Poll(fds, -1); err != nil {
			t.Fatal(err)
		}
	}
	b.Drain()
	if err := s.Poll(fds, 0); err != nil || fds[0].Revents != 0 {
		t.Fatalf("a bell after Drain: %v, events %#x", err, fds[0].Revents)
	}
}
