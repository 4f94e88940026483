package nbd

import (
	"context"
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
	if u, ok := l.(*net.UnixListener); ok && unlink && err == nil {
		return adoptAt(u, u.Addr().String())
	}
	return l, err
}

// AdoptSocket is [AdoptListener] with unlink for the UNIX socket at path, which
// may have another name than when it was made.
func AdoptSocket(fd int, path string) (net.Listener, error) {
	l, err := adopt(fd)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("listener of type %T is no UNIX socket", l)
	}
	return adoptAt(u, path)
}

// adoptAt returns the listener of the socket at path, with this process as the
// one that listens there for all who ask the kernel.
func adoptAt(u *net.UnixListener, path string) (net.Listener, error) {
	id, err := os.Lstat(path)
	if err == nil {
		err = listenAgain(u)
	}
	if err != nil {
		u.Close()
		return nil, fmt.Errorf("socket of a listener: %w", err)
	}
	return &unixListener{UnixListener: u, path: path, id: id}, nil
}

// listenAgain makes this process the owner of a listening socket, which goes on
// with its connections.
func listenAgain(u *net.UnixListener) error {
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) { failure = unix.Listen(int(fd), unix.SOMAXCONN) })
	return errors.Join(err, failure)
}

// MoveSocket gives the socket of l, which [AdoptSocket] returned, another path,
// at which no process listens. Nothing accepts at l meanwhile.
func MoveSocket(ctx context.Context, l net.Listener, path string) error {
	u, ok := l.(*unixListener)
	if !ok {
		return fmt.Errorf("listener of type %T has no path", l)
	}
	if u.path == path {
		return nil
	}
	unlock, err := lockSocket(ctx, path)
	if err != nil {
		return fmt.Errorf("move the socket %q: %w", u.path, err)
	}
	defer unlock()
	if err = removeStale(path); err == nil {
		err = os.Rename(u.path, path)
	}
	if err != nil {
		return fmt.Errorf("move the socket %q to %q: %w", u.path, path, err)
	}
	u.path = path
	return nil
}
