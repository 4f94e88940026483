package nbd

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connected stream socket that the transmission loop owns: the
// runtime's poller does not know it. Its methods never block and return how
// many bytes moved, or an errno: EAGAIN if none can move now.
type socket int

// sendBuffer is the size asked for the socket's send buffer, in bytes: with the
// kernel's default of 208 KiB, a batch of large reads takes several sleeps to
// get out. The kernel cuts it to its limit.
const sendBuffer = 1 << 20

// dupSocket returns a descriptor of its own for the socket under conn. The
// caller closes conn, which leaves the socket open.
func dupSocket(conn net.Conn) (socket, error) {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("connection of type %T is no socket", conn)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.SetNoDelay(true); err != nil {
			return -1, fmt.Errorf("set TCP_NODELAY: %w", err)
		}
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("take socket: %w", err)
	}
	taken := -1
	var duplicate error
	if err := raw.Control(func(fd uintptr) {
		taken, duplicate = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, fmt.Errorf("take socket: %w", err)
	}
	if duplicate != nil {
		return -1, fmt.Errorf("take socket: %w", duplicate)
	}
	if kind, err := unix.GetsockoptInt(taken, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		unix.Close(taken)
		return -1, errors.Join(errors.New("not a stream socket"), err)
	}
	if size, err := unix.GetsockoptInt(taken, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && size < sendBuffer {
		// Best effort: a smaller buffer costs speed only.
		_ = unix.SetsockoptInt(taken, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	return socket(taken), nil
}

// close closes the descriptor, if there is one.
func (s socket) close() {
	if s >= 0 {
		unix.Close(int(s))
	}
}
