package shm_test

import (
	"testing"
	"time"

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
// system calls that would wake it. A control message of the peer wakes the end
// at any time: an exchange without one shows it.
func TestDisarmedEndIsNotWoken(t *testing.T) {
	for _, disarmed := range []bool{true, false} {
		c, s := connectedPair(t, 8, 1<<20)
		for attempt := 0; ; attempt++ {
			rung, woken := c.exchange(t, s, disarmed)
			if rung == disarmed {
				t.Errorf("disarmed %v: the peer rings: %v", disarmed, rung)
			}
			if woken != disarmed {
				break
			}
			if !disarmed || attempt == 100 {
				t.Fatalf("disarmed %v: woken: %v", disarmed, woken)
			}
		}
	}
}

// exchange arms an end, which has its peer send to it and sends to its peer. It
// reports whether the peer rang, and whether the end would not sleep.
func (e *end) exchange(t *testing.T, peer *end, disarmed bool) (rung, woken bool) {
	t.Helper()
	r := e.descriptor(t, 0)
	r.Reset(via.OpRecv)
	must(t, e.vi.PostRecv(r))
	for !e.cq.Arm() || e.readable(t) {
		e.cq.Poll(make([]via.Completion, 8))
	}
	if disarmed {
		e.cq.Disarm()
	}
	rings := peer.vi.Stats().Doorbells
	answer, request := peer.descriptor(t, 0), e.descriptor(t, 1)
	answer.Reset(via.OpSend)
	must(t, peer.vi.PostSend(answer))
	rung = peer.vi.Stats().Doorbells != rings
	request.Reset(via.OpSend)
	must(t, peer.vi.PostRecv(receive(t, peer)))
	must(t, e.vi.PostSend(request))
	woken = e.readable(t)
	for range 2 {
		if c := e.await(t); c.Status.Failed() {
			t.Errorf("disarmed %v: %v", disarmed, c.Status)
		}
		if c := peer.await(t); c.Status.Failed() {
			t.Errorf("disarmed %v: %v at the peer", disarmed, c.Status)
		}
	}
	return rung, woken
}

// receive returns a receive of an end.
func receive(t *testing.T, e *end) *via.Descriptor {
	r := e.descriptor(t, 2)
	r.Reset(via.OpRecv)
	return r
}

// An end of which nothing is left but its queue is not woken: its link noticed
// the end of the peer while the end was awake.
func TestEndedLinkLeavesNoWakeUp(t *testing.T) {
	c, s := connectedPair(t, 8, 1<<20)
	must(t, s.vi.Disconnect())
	for deadline := time.Now().Add(time.Minute); !c.readable(t); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the link does not notice the end of its peer")
		}
	}
	must(t, c.vi.Disconnect())
	for c.cq.Poll(make([]via.Completion, 8)) != 0 {
	}
	if c.readable(t) {
		t.Error("the file descriptor is readable though there is no connection")
	}
}
