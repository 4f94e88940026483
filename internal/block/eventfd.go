package block

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// eventFD is a counter that a poller sleeps on. Anybody signals it; one goroutine
// drains it.
type eventFD struct {
	fd   int
	seen [8]byte // what drain reads into
}

// one is what signal writes; a counter is in the byte order of the host.
var one = binary.NativeEndian.AppendUint64(nil, 1)

func newEventFD() (*eventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return &eventFD{fd: fd}, nil
}

// signal adds one. The write can only fail when the counter is full, and then
// the file descriptor is readable as it should be.
func (e *eventFD) signal() {
	for {
		if _, err := unix.Write(e.fd, one); err != unix.EINTR {
			return
		}
	}
}

// drain returns how often signal was called since the last drain, 0 if never.
func (e *eventFD) drain() uint64 {
	for {
		n, err := unix.Read(e.fd, e.seen[:])
		switch {
		case err == unix.EINTR:
		case err != nil || n != len(e.seen):
			return 0
		default:
			return binary.NativeEndian.Uint64(e.seen[:])
		}
	}
}

func (e *eventFD) close() error {
	if err := unix.Close(e.fd); err != nil {
		return fmt.Errorf("close an eventfd: %w", err)
	}
	return nil
}
