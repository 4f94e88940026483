package exerciser

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctlRange calls an ioctl of block devices that takes a range in bytes.
func ioctlRange(fd int, request uint, off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	// Safety: BLKDISCARD and BLKZEROOUT read 16 bytes there during the call, and the
	// conversion in the argument list keeps span alive and in its place.
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&span)))
	if e != 0 {
		return e
	}
	return nil
}
