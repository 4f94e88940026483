package bench

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls do not block, so the scheduler need not know of them.

// sendDatagram sends b, which may be empty but has memory behind it.
func sendDatagram(fd int, b []byte, to *sockaddr) unix.Errno {
	// Safety: the kernel reads len(b) bytes of b and to.length of to.bytes
	// during the call, which has as many; both stay alive and in place until it
	// returns.
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&to.bytes)), uintptr(to.length))
	return errno
}

// receiveDatagram fills b and the address of the sender.
func receiveDatagram(fd int, b []byte, from *sockaddr) (int, unix.Errno) {
	from.length = uint32(len(from.bytes))
	// Safety: the kernel writes at most len(b) bytes to b, and at most
	// from.length, the length of the array, to from.bytes, during the call.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&from.bytes)), uintptr(unsafe.Pointer(&from.length)))
	return int(n), errno
}
