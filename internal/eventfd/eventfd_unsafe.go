// Package eventfd wakes a goroutine that sleeps in poll or epoll, such as the
// loop of a connection or of a completion queue. An eventfd is a plain file
// descriptor: any goroutine may ring it, the owner drains and closes it.
package eventfd

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// New returns a non-blocking eventfd that exec closes. It is not readable yet.
func New() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("create eventfd: %w", err)
	}
	return fd, nil
}

// Ring makes fd readable. It neither blocks nor fails, and the Go scheduler
// does not see it. An eventfd at its limit is readable already. The caller
// makes sure that fd is open.
func Ring(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes of one during the call and keeps
	// nothing; RawSyscall keeps one alive and the stack in place.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// Drain makes fd, a non-blocking eventfd or timerfd, unreadable and returns its
// count: the rings or expirations since the last Drain, 0 if there were none.
func Drain(fd int) uint64 {
	var v uint64
	// Safety: the kernel writes 8 bytes to v during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
	return v
}

// Close closes fd. A negative fd is no error: the owner never opened it.
func Close(fd int) error {
	if fd < 0 {
		return nil
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close eventfd: %w", err)
	}
	return nil
}
