package backend

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctlRange passes a range of bytes to a block device.
func ioctlRange(fd int, request uint, off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	// Safety: BLKDISCARD and BLKZEROOUT read two 64-bit integers and keep no
	// reference; span lives until the call returns.
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&span)))
	if e != 0 {
		return e
	}
	return nil
}

// address returns where p begins, to look at its alignment.
func address(p []byte) uintptr {
	// Safety: the address is compared, never turned into a pointer again.
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}
