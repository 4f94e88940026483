package nbd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is the error of [ListenUnix] for a socket that another process
// serves.
var ErrInUse = errors.New("socket is in use")

// Listen listens on a "tcp", "tcp4" or "tcp6" address, on a "unix" socket with
// mode 0600, or on a "vsock" address, CID:PORT.
func Listen(ctx context.Context, network, address string) (net.Listener, error) {
	switch network {
	case "unix":
		return ListenUnix(ctx, address, 0)
	case "vsock":
		return listenVsock(address)
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// ListenUnix listens on a UNIX socket at path, created with the permission bits
// of mode; 0 stands for 0600. A stale socket is replaced; one that is served is
// [ErrInUse], and any other file is left alone. Closing the listener removes
// the socket, unless another process has replaced it.
func ListenUnix(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	// Another process may do the same concurrently.
	unlock, err := lockSocket(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	bits := uint32(orDefault(mode, 0o600).Perm())
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// The mode of the descriptor is the mode of the socket that bind
		// creates: at no time can others connect.
		var chmod error
		control := c.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), bits) })
		return errors.Join(control, chmod)
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	// The umask has taken bits off.
	err = os.Chmod(path, fs.FileMode(bits))
	var id fs.FileInfo
	if err == nil {
		id, err = os.Lstat(path)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return &unixListener{UnixListener: u, path: path, id: id}, nil
}

// unixListener removes its socket, and no other, when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
	id   fs.FileInfo
	once sync.Once
	err  error

	shared atomic.Bool // the socket stays: another process has it too
}

// Close implements [net.Listener].
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if l.shared.Load() {
			l.err = l.UnixListener.Close()
			return
		}
		unlock, err := lockSocket(context.Background(), l.path)
		if err == nil {
			defer unlock()
			if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.id) {
				os.Remove(l.path)
			}
		}
		l.err = l.UnixListener.Close()
	})
	return l.err
}

// RemoveStale removes the socket at path if no process listens there. The error
// wraps [ErrInUse] if one does.
func RemoveStale(ctx context.Context, path string) error {
	unlock, err := lockSocket(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	return removeStale(path)
}

// removeStale removes a stale socket at path.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is not a socket")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return ErrInUse
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}
