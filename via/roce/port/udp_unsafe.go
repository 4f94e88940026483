package port

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of a UDP shard. Calls that never block bypass the scheduler,
// whose entry and exit cost more than receiving a packet; the call that blocks
// releases its P.

// sendBatch sends messages and returns how many; fewer if the next one failed,
// and an errno if the first failed.
func sendBatch(fd int, messages []unix.Mmsghdr) (int, unix.Errno) {
	return moveBatch(unix.SYS_SENDMMSG, fd, messages)
}

// receiveBatch receives messages and returns how many.
func receiveBatch(fd int, messages []unix.Mmsghdr) (int, unix.Errno) {
	return moveBatch(unix.SYS_RECVMMSG, fd, messages)
}

// peek returns 0 if a socket has received a message, and otherwise why not.
func peek(fd int) unix.Errno {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

func moveBatch(call uintptr, fd int, messages []unix.Mmsghdr) (int, unix.Errno) {
	for {
		// Safety: messages are heap memory that outlives the call, and so is
		// what they point to; the lengths beside those pointers were set with
		// them.
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(messages))),
			uintptr(len(messages)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			return int(n), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// awaitRoom waits until a socket is writable and reports whether it is.
func awaitRoom(fd int, timeout time.Duration) bool {
	fds := unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	limit := unix.NsecToTimespec(int64(timeout))
	// Safety: fds and limit outlive the call; no signal mask is passed.
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno == unix.EINTR || n == 1
}

// setIovec makes v point to p, which is not empty.
func setIovec(v *unix.Iovec, p []byte) {
	v.Base = unsafe.SliceData(p) // Safety: the length goes with it.
	v.SetLen(len(p))
}

// iovecBytes returns the slice of setIovec.
func iovecBytes(v *unix.Iovec) []byte {
	return unsafe.Slice(v.Base, v.Len) // Safety: setIovec made v of a slice that long.
}

// setIovecs sets the buffers of m to v.
func setIovecs(m *unix.Msghdr, v []unix.Iovec) {
	m.Iov = unsafe.SliceData(v) // Safety: the length goes with it.
	m.SetIovlen(len(v))
}

// setName sets the address of m to n.
func setName(m *unix.Msghdr, n *sockname) {
	m.Name = &n.bytes[0]
	m.Namelen = n.size
}

// segmentControl is the control message UDP_SEGMENT.
type segmentControl struct {
	header unix.Cmsghdr
	size   uint16
	_      [6]byte // CMSG_SPACE
}

// set makes m a run of packets of a size. m refers to c.
func (c *segmentControl) set(m *unix.Msghdr, size int) {
	c.header.Level = unix.IPPROTO_UDP
	c.header.Type = unix.UDP_SEGMENT
	c.header.SetLen(unix.CmsgLen(2))
	c.size = uint16(size)
	// Safety: c begins with the control message, and is that long.
	m.Control = (*byte)(unsafe.Pointer(c))
	m.SetControllen(int(unsafe.Sizeof(*c)))
}
