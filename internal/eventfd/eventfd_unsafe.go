// Package eventfd rings and drains eventfds on data paths: neither call blocks or
// fails, and the scheduler need not know of them.
package eventfd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring adds one to an eventfd. One at its limit is readable already.
func Ring(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes of one during the call and keeps nothing;
	// RawSyscall keeps one alive and the stack in place.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// Drain empties an eventfd or a timerfd that was made not to block.
func Drain(fd int) {
	var v uint64
	// Safety: the kernel writes 8 bytes to v during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
}
