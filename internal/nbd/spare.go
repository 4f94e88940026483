package nbd

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// spare is a file descriptor that a listener keeps for the time when the process has
// no other left: with it a client is accepted and closed, which tells it at once
// what it would wait for in the listener's backlog otherwise. Zero is none.
type spare int

// keep gets the descriptor, if it can be had.
func (s *spare) keep() {
	if *s > 0 {
		return
	}
	if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		*s = spare(fd)
	}
}

// lend makes room for one descriptor, or reports that it cannot.
func (s *spare) lend() bool {
	if *s <= 0 {
		return false
	}
	unix.Close(int(*s))
	*s = 0
	return true
}

// outOfFiles reports whether the process, or the system, has no descriptor left.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// errNoFiles is why a client is refused that was accepted with the spare.
var errNoFiles = errors.New("no file descriptor left: raise the limit of open files, or lower those of connections and handshakes")

// relieve deals with a listener that has no descriptor for its next client: another
// client's handshake makes room, or the next client is closed. It reports false if
// there is nothing but to wait.
func (s *Server) relieve(l net.Listener, extra *spare) bool {
	s.mu.Lock()
	victim := s.admission.drop()
	if victim != nil {
		s.dropped++
	}
	s.mu.Unlock()
	if victim != nil {
		s.cut(victim)
		return true
	}
	if !extra.lend() {
		return false
	}
	defer extra.keep()
	nc, err := l.Accept()
	if err != nil {
		return false
	}
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
	s.refusals.Warn(s.log(), "connection refused", "client", nameOf(nc), "error", errNoFiles)
	nc.Close()
	return true
}
