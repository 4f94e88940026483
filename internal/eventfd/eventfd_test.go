package eventfd_test

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// An eventfd is readable from the first Ring to the next Drain, at its limit,
// too, and neither call blocks.
func TestRingAndDrain(t *testing.T) {
	for _, at := range []uint64{0, 1, math.MaxUint64 - 1} {
		fd := open(t)
		defer eventfd.Close(fd)
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
				t.Fatalf("at %d: not readable after Ring", at)
			}
		}
		rung := at + 3
		if at == math.MaxUint64-1 {
			rung = at // at the limit, Ring adds nothing
		}
		for _, want := range []uint64{rung, 0} {
			if n := eventfd.Drain(fd); n != want {
				t.Fatalf("at %d: Drain returned %d, not %d", at, n, want)
			}
			if readable(t, fd) {
				t.Fatalf("at %d: readable after Drain", at)
			}
		}
	}
}

func TestClose(t *testing.T) {
	fd := open(t)
	if err := eventfd.Close(fd); err != nil {
		t.Fatal(err)
	}
	if err := eventfd.Close(fd); !errors.Is(err, unix.EBADF) {
		t.Errorf("second Close returned %v, not EBADF", err)
	}
	if err := eventfd.Close(-1); err != nil {
		t.Errorf("Close of a negative descriptor returned %v", err)
	}
}

func open(t *testing.T) int {
	t.Helper()
	fd, err := eventfd.New()
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func readable(t *testing.T, fd int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}
