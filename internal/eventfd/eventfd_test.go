package eventfd_test

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// An eventfd is readable from the first Ring to the next Drain, at its limit, too, and
// neither call blocks.
func TestRingAndDrain(t *testing.T) {
	for _, at := range []uint64{0, 1, math.MaxUint64 - 1} {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if readable(t, fd) {
			t.Fatal("a new eventfd is readable")
		}
		var count [8]byte
		for i := range count {
			count[i] = byte(at >> (8 * i))
		}
		if at != 0 {
			if _, err := unix.Write(fd, count[:]); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			if eventfd.Ring(fd); !readable(t, fd) {
				t.Fatalf("at %d: not readable when it was rung", at)
			}
		}
		for range 2 {
			if eventfd.Drain(fd); readable(t, fd) {
				t.Fatalf("at %d: readable when it was drained", at)
			}
		}
	}
}

func readable(t *testing.T, fd int) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}
