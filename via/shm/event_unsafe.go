package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringEvent adds one to an eventfd. It does not block: an eventfd at its limit is
// readable already.
func ringEvent(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes during the call; RawSyscall keeps one alive
	// and the stack in place. The call never blocks, so the scheduler need not know.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// drainEvent empties an eventfd without blocking.
func drainEvent(fd int) {
	var v uint64
	// Safety: as for ringEvent; the kernel writes 8 bytes.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
}
