//go:build verbs && cgo

package verbs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Neither call blocks, so the scheduler need not know of them.

// ring adds one to an eventfd. One at its limit is readable already.
func ring(fd int) {
	one := uint64(1)
	// Safety: the kernel reads 8 bytes of one during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// drain empties an eventfd, which does not block.
func drain(fd int) {
	var v uint64
	// Safety: the kernel writes 8 bytes to v during the call and keeps nothing.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&v)), 8)
}
