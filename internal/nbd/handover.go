package nbd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// CopyListener returns a further descriptor of a listener, for another process
// that serves it. The socket of a path stays when l is closed from then on. The
// caller owns the descriptor.
func CopyListener(l net.Listener) (fd int, err error) {
	s, ok := l.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("listener of type %T is no socket", l)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failure error
	err = raw.Control(func(from uintptr) { fd, failure = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failure); err != nil {
		return -1, fmt.Errorf("copy the descriptor of a listener: %w", err)
	}
	ShareSocket(l, true)
	return fd, nil
}

// ShareSocket says whether another process has the socket of l too, or may go
// on with it: the socket of a path stays then when l is closed.
func ShareSocket(l net.Listener, shared bool) {
	if u, ok := l.(*unixListener); ok {
		u.shared.Store(shared)
	}
}

// AdoptListener returns the listener of a descriptor that [CopyListener] made,
// in this process or another one, and takes the descriptor. With unlink the
// socket of a path is removed when the listener is closed, as that of
// [ListenUnix]. The error wraps fs.ErrNotExist if that is gone.
func AdoptListener(fd int, unlink bool) (net.Listener, error) {
	l, err := adopt(fd)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || !unlink {
		return l, nil
	}
	path := u.Addr().String()
	id, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("socket of a listener: %w", err)
	}
	return &unixListener{UnixListener: u, path: path, id: id}, nil
}
