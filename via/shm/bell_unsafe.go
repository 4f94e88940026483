package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls do not block, so the scheduler need not know of them. The peer
// can change the flags of an open socket; MSG_DONTWAIT applies to this call
// alone.

// ringBell sends a byte to a peer, and reports whether there was room. A socket
// without room is readable already.
func ringBell(fd int) bool {
	var b byte
	// Safety: the kernel reads 1 byte during the call; RawSyscall6 keeps b
	// alive and the stack in place; there is no address.
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return errno == 0
}

// drainBell empties a bell. It ends although a peer rings without a pause: that
// peer's own wake-ups may get lost then.
func drainBell(fd int) {
	var b [512]byte
	for range 64 {
		// Safety: the kernel writes at most 512 bytes during the call; no
		// address is asked for.
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 || n < uintptr(len(b)) {
			return
		}
	}
}

// pollEvents stores the pending events of an epoll file descriptor and returns
// their number.
func pollEvents(fd int, events *[16]unix.EpollEvent) int {
	// Safety: the kernel writes at most 16 events during the call, whose
	// timeout is 0.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])),
		uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
