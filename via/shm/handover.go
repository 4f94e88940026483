package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Sockets are the listening sockets of the providers that have them in their
// options, and those of another process that this one takes over from. A
// socket that moves listens all the time: connections wait in the kernel for
// the process that accepts next. Its methods are safe for concurrent use.
type Sockets struct {
	mu sync.Mutex
	// +checklocks:mu
	shared bool // the process before goes on with those given if this one fails
	// +checklocks:mu
	given map[string]*net.UnixListener // by path: of the process before
	// +checklocks:mu
	open map[*listening]struct{}
}

// NewSockets returns the sockets of a process that starts with those of another
// one. It owns the descriptors, also if there is an error. With shared the
// other one goes on if this process fails: until Forget the sockets of closed
// listeners stay.
func NewSockets(given []int, shared bool) (*Sockets, error) {
	s := &Sockets{shared: shared, given: make(map[string]*net.UnixListener), open: make(map[*listening]struct{})}
	var errs []error
	for _, fd := range given {
		l, err := adopt(fd)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		path := l.Addr().String()
		if before := s.given[path]; before != nil {
			_ = before.Close()
		}
		s.given[path] = l
	}
	if len(errs) > 0 {
		s.Close()
		return nil, fmt.Errorf("listening sockets: %w", errors.Join(errs...))
	}
	return s, nil
}

// adopt returns the listener of a descriptor, which it takes.
func adopt(fd int) (*net.UnixListener, error) {
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "listening socket")
	if file == nil {
		return nil, unix.EBADF
	}
	defer func() { _ = file.Close() }() // the listener has a descriptor of its own
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind != unix.SOCK_SEQPACKET {
		err = unix.ESOCKTNOSUPPORT
	}
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN) // peers ask the kernel who listens
	}
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, unix.EAFNOSUPPORT
	}
	return u, nil
}

// claim returns the listener that was given for a path, nil if there is none
// whose socket is still there.
func (s *Sockets) claim(path string) *net.UnixListener {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	l, shared := s.given[path], s.shared
	delete(s.given, path)
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if st, err := os.Lstat(path); err != nil || st.Mode()&os.ModeSocket == 0 {
		_ = l.Close()
		return nil
	}
	l.SetUnlinkOnClose(!shared)
	return l
}

// add notes a listener; remove forgets it.
func (s *Sockets) add(l *listening) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[l] = struct{}{}
	}
}

func (s *Sockets) remove(l *listening) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, l)
	}
}

// HandOver returns further descriptors of all listeners, which accept nothing
// from then on; their sockets stay when they are closed. The caller owns the
// descriptors. An error changes nothing.
func (s *Sockets) HandOver() (fds []int, err error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	all := make([]*listening, 0, len(s.open))
	for l := range s.open {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		fd, err := l.copy()
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return nil, fmt.Errorf("copy the descriptor of socket %s: %w", l.l.Addr(), err)
		}
		fds = append(fds, fd)
	}
	for _, l := range all {
		l.l.SetUnlinkOnClose(false)
		_ = l.Close()
	}
	return fds, nil
}

// copy returns a further descriptor of the socket.
func (s *listening) copy() (fd int, err error) {
	raw, err := s.l.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failure error
	err = raw.Control(func(from uintptr) { fd, failure = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, failure)
}

// Forget says that this process goes on: it removes the sockets that were given
// and that no listener has claimed.
func (s *Sockets) Forget() {
	s.release(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = false
	for l := range s.open {
		l.l.SetUnlinkOnClose(true)
	}
}

// Close closes what was given and that no listener has claimed. The sockets
// stay for the process that has them too.
func (s *Sockets) Close() { s.release(false) }

func (s *Sockets) release(unlink bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, l := range s.given {
		l.SetUnlinkOnClose(unlink)
		_ = l.Close()
		delete(s.given, path)
	}
}
