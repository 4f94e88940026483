package roce

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTimerThatExpiresLate: the kernel's timer expires a moment after it is
// due. A poll between the two ends it as well, so that it does not make the
// file descriptor readable for ever.
func TestTimerThatExpiresLate(t *testing.T) {
	c, err := newCQ()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	due := clock() + 20*time.Millisecond
	if !c.setTimer(due) {
		t.Fatal("no timer")
	}
	c.disarm(due) // the kernel is not there yet
	poll := func(milliseconds int) int {
		fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(fds, milliseconds)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	if poll(200) != 0 {
		t.Error("the timer of a poll that is over wakes")
	}
	if !c.setTimer(clock() + time.Millisecond) {
		t.Fatal("no timer")
	}
	if poll(-1) != 1 {
		t.Error("the next timer does not wake")
	}
}
