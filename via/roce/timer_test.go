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
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 200); n != 0 && err == nil {
		t.Error("the timer of a poll that is over wakes")
	}
	if !c.setTimer(clock() + time.Millisecond) {
		t.Fatal("no timer")
	}
	if n, err := unix.Poll(fds, -1); n != 1 || err != nil {
		t.Errorf("the next timer does not wake: %d, %v", n, err)
	}
}
