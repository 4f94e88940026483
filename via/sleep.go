package via

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Infinite is the timeout of a wait that never times out (VIP_INFINITE).
const Infinite time.Duration = -1

// sleeper sleeps on a completion queue until a deadline.
type sleeper struct {
	cq       *CQ
	deadline time.Time
	forever  bool
	wake     chan struct{} // holds one; nil while the NIC's goroutine does not drive
}

func (c *CQ) sleeper(timeout time.Duration) sleeper {
	if timeout < 0 {
		return sleeper{cq: c, forever: true}
	}
	return sleeper{cq: c, deadline: time.Now().Add(timeout)}
}

// sleep returns when the queue may have something to poll, or with ErrTimeout.
func (s *sleeper) sleep() error {
	var rest time.Duration
	if !s.forever {
		if rest = time.Until(s.deadline); rest <= 0 {
			return ErrTimeout
		}
	}
	if s.cq.driver.Load().shared {
		return s.await(rest)
	}
	if !s.cq.Arm() {
		return nil
	}
	var left *unix.Timespec
	if !s.forever {
		ts := unix.NsecToTimespec(rest.Nanoseconds())
		left = &ts
	}
	fds := [1]unix.PollFd{{Fd: int32(s.cq.FD()), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds[:], left, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("sleep: %w: %w", ErrResource, err)
	}
	return nil
}

// await sleeps while the NIC's goroutine drives the queue too: that may consume
// the event that makes the file descriptor readable, so it sends a wake-up
// instead. The first call requests it, the others sleep.
func (s *sleeper) await(rest time.Duration) error {
	if s.wake == nil {
		c := s.cq
		drv := c.acquire()
		defer drv.release()
		s.wake = make(chan struct{}, 1)
		c.sleepers = append(c.sleepers, s.wake)
		return c.nic.notify.serve(c)
	}
	if s.forever {
		<-s.wake
		return nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	}
	return nil
}

// end cancels the wake-up.
func (s *sleeper) end() {
	if s.wake == nil {
		return
	}
	c := s.cq
	drv := c.acquire()
	defer drv.release()
	c.sleepers = slices.DeleteFunc(c.sleepers, func(w chan struct{}) bool { return w == s.wake })
}

// wakeSleepers wakes the goroutines that sleep on the queue.
func (c *CQ) wakeSleepers() {
	for _, w := range c.sleepers {
		select {
		case w <- struct{}{}:
		default: // woken already
		}
	}
}
