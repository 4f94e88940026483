package target

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// signal adds one to an eventfd without blocking.
func signal(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes of one during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// drainSignal empties an eventfd without blocking.
func drainSignal(fd int) {
	var v uint64
	// Safety: the kernel writes 8 bytes to v during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
}
