// Package blockdev discards and zeroes ranges of block devices of the kernel by
// the ioctls that golang.org/x/sys lacks. The file backend of a target calls it
// for trims and zeroes; the caller owns the file descriptor.
package blockdev

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Discard discards a range of bytes of the block device fd.
func Discard(fd int, off, length int64) error { return call(fd, unix.BLKDISCARD, off, length) }

// ZeroOut makes a range of bytes of the block device fd zero.
func ZeroOut(fd int, off, length int64) error { return call(fd, unix.BLKZEROOUT, off, length) }

// call passes a range to a block device.
func call(fd int, request uint, off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	// Safety: BLKDISCARD and BLKZEROOUT read two 64-bit integers and keep no
	// reference; the conversion in the argument list keeps span alive and in
	// its place until the call returns.
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&span)))
	if e != 0 {
		return e
	}
	return nil
}
