package nbd

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the data path. Those that never block are made without
// telling the Go scheduler, which costs more than some of them; the one that
// sleeps gives its processor back.

// receive fills p with what has arrived. 0 and no errno is the end of the
// stream.
func (s socket) receive(p []byte) (int, syscall.Errno) {
	for {
		// Safety: p is not empty, and the kernel writes at most len(p) bytes to
		// it before the call returns.
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if e != unix.EINTR {
			return result(n, e)
		}
	}
}

// scatter fills the buffers of m with what has arrived, in order.
func (s socket) scatter(m *message) (int, syscall.Errno) {
	for {
		// Safety: the iovecs of m point at live slices; see message.
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s), uintptr(unsafe.Pointer(&m.header)), unix.MSG_DONTWAIT)
		if e != unix.EINTR {
			return result(n, e)
		}
	}
}

// gather sends the buffers of m in order. A peer that is gone is an errno,
// never a signal.
func (s socket) gather(m *message) (int, syscall.Errno) {
	for {
		// Safety: the iovecs of m point at live slices; see message.
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s), uintptr(unsafe.Pointer(&m.header)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if e != unix.EINTR {
			return result(n, e)
		}
	}
}

// send sends p.
func (s socket) send(p []byte) (int, syscall.Errno) {
	for {
		// Safety: p is not empty, and the kernel reads at most len(p) bytes of
		// it before the call returns.
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if e != unix.EINTR {
			return result(n, e)
		}
	}
}

// result is the result of a call that moves bytes.
func result(n uintptr, e syscall.Errno) (int, syscall.Errno) {
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// message is the argument of scatter and gather. It is part of a heap object
// that outlives the call, because its header holds the address of the iovecs.
type message struct {
	header unix.Msghdr
}

// use sets the buffers of the message.
func (m *message) use(iov []unix.Iovec) {
	// The pointers in iov and this one are typed: the garbage collector follows
	// them as any other.
	m.header.Iov = unsafe.SliceData(iov) // Safety: the length goes with it.
	m.header.SetIovlen(len(iov))
}

// setIovec makes v point at p, which is not empty.
func setIovec(v *unix.Iovec, p []byte) {
	v.Base = unsafe.SliceData(p) // Safety: the length goes with it.
	v.SetLen(len(p))
}

// buffer returns what v points at.
func buffer(v *unix.Iovec) []byte {
	return unsafe.Slice(v.Base, v.Len) // Safety: setIovec made v of a slice that long.
}

// advance drops the first n bytes of v.
func advance(v *unix.Iovec, n int) {
	setIovec(v, buffer(v)[n:])
}

// ppoll waits until one of the descriptors is ready or timeout has passed;
// negative: without limit. It may return early. The processor is free for other
// goroutines meanwhile. It reports whether the time has passed with none ready.
func ppoll(fds []unix.PollFd, timeout time.Duration) (passed bool) {
	var limit *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		limit = &t
	}
	// Safety: fds and limit outlive the call; no signal mask is passed.
	n, _, e := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	return n == 0 && e == 0
}
