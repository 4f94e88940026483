package nbdkernel

import (
	"context"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// link is one connection between the driver and this process.
type link struct {
	conn net.Conn      // the near end, until serve takes it
	near int           // another descriptor of it
	far  int           // the kernel's end, until it was offered to the driver; then -1
	err  error         // how it ended; nil: the driver said disconnect
	done chan struct{} // closed when it has ended

	ready chan struct{} // closed when it is served
}

// buffer is the size asked for the sending buffer of the kernel's end, bytes:
// room for several of its requests, so that a writer does not wait after each.
const buffer = 4 << 20

// newLink makes a connection. The caller calls serve, or drop.
func newLink() (*link, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	l := &link{near: pair[0], far: pair[1], done: make(chan struct{}), ready: make(chan struct{})}
	// Best effort: a smaller buffer costs speed only. The first takes rights.
	if unix.SetsockoptInt(l.far, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(l.far, unix.SOL_SOCKET, unix.SO_SNDBUF, buffer)
	}
	if l.conn, err = connOf(l.near); err != nil {
		l.discard()
		return nil, err
	}
	return l, nil
}

// connOf returns a connection with a descriptor of its own for a socket.
func connOf(fd int) (net.Conn, error) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(copied), "kernel connection")
	defer file.Close()
	return net.FileConn(file)
}

// discard closes a connection that is not served.
func (l *link) discard() {
	if l.conn != nil {
		l.conn.Close()
	}
	l.closeFar()
	unix.Close(l.near)
}

// serve serves the connection to its end, for both ends.
func (l *link) serve(ctx context.Context, serve func(context.Context, net.Conn, func()) error) {
	l.err = serve(ctx, l.conn, func() { close(l.ready) })
	l.shutdown() // there are other descriptors of the socket
	close(l.done)
}

// closeFar closes the kernel's end here: the driver has one of its own if it
// took it.
func (l *link) closeFar() {
	if l.far >= 0 {
		unix.Close(l.far)
		l.far = -1
	}
}

// disconnected reports whether the other end is closed, or this one was shut
// down.
func (l *link) disconnected() bool {
	fds := []unix.PollFd{{Fd: int32(l.near)}}
	for {
		if _, err := unix.Poll(fds, 0); err != unix.EINTR {
			return fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}

// shutdown ends the connection for both ends.
func (l *link) shutdown() { _ = unix.Shutdown(l.near, unix.SHUT_RDWR) }

// drain takes no more requests; what is in flight is answered.
func (l *link) drain() { _ = unix.Shutdown(l.near, unix.SHUT_RD) }

// close releases the connection, which has ended.
func (l *link) close() {
	l.closeFar()
	unix.Close(l.near)
}
