package shm_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// readable reports whether the end would not sleep.
func (e *end) readable(t *testing.T) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(e.cq.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		must(t, err)
		return n != 0
	}
}

// An end that is awake after Arm posts, and its peer answers, without the
// system calls that would wake it.
func TestDisarmedEndIsNotWoken(t *testing.T) {
	for _, disarmed := range []bool{true, false} {
		c, s := connectedPair(t, 8, 1<<20)
		r := c.descriptor(t, 0)
		r.Reset(via.OpRecv)
		must(t, c.vi.PostRecv(r))
		for !c.cq.Arm() || c.readable(t) {
			c.cq.Poll(make([]via.Completion, 8))
		}
		if disarmed {
			c.cq.Disarm()
		}
		rings := s.vi.Stats().Doorbells
		answer, request := s.descriptor(t, 0), c.descriptor(t, 1)
		answer.Reset(via.OpSend)
		must(t, s.vi.PostSend(answer))
		if rung := s.vi.Stats().Doorbells != rings; rung == disarmed {
			t.Errorf("disarmed %v: the peer rings: %v", disarmed, rung)
		}
		request.Reset(via.OpSend)
		must(t, s.vi.PostRecv(receive(t, s)))
		must(t, c.vi.PostSend(request))
		if woken := c.readable(t); woken == disarmed {
			t.Errorf("disarmed %v: woken: %v", disarmed, woken)
		}
		for range 2 {
			if e := c.await(t); e.Status.Failed() {
				t.Errorf("disarmed %v: %v", disarmed, e.Status)
			}
		}
	}
}

// receive returns a receive of an end.
func receive(t *testing.T, e *end) *via.Descriptor {
	r := e.descriptor(t, 2)
	r.Reset(via.OpRecv)
	return r
}
