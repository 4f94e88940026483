package bench

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls do not block, so the scheduler need not know of them, as in the
// providers that are compared.

// ring adds one to an eventfd.
func ring(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes during the call; RawSyscall keeps one alive
	// and the stack in place.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// take empties a readable eventfd.
func take(fd int) {
	var v uint64
	// Safety: the kernel writes 8 bytes to v during the call.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
}
