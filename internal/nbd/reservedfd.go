package nbd

import (
	"errors"
	"net"
	"syscall"

	"github.com/viablk/viablk/internal/eventfd"
)

// reservedFD is a file descriptor that a listener keeps for the time when the
// process has no other left: with it a client is accepted and closed, which
// tells it at once what it would wait for in the listener's backlog otherwise.
// Zero is none.
type reservedFD int

// acquire gets the descriptor, if it can be had.
func (s *reservedFD) acquire() {
	if *s > 0 {
		return
	}
	if fd, err := eventfd.New(); err == nil {
		*s = reservedFD(fd)
	}
}

// release makes room for one descriptor, or reports that it cannot.
func (s *reservedFD) release() bool {
	if *s <= 0 {
		return false
	}
	_ = eventfd.Close(int(*s))
	*s = 0
	return true
}

// outOfFDs reports whether the process, or the system, has no descriptor left.
func outOfFDs(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// errNoFDs is why a client is refused that was accepted with the reserved
// descriptor, loses its handshake to a newer one, or needs one more than there
// is.
var errNoFDs = errors.New("no file descriptor left: raise the limit of open files, or lower those of connections and handshakes")

// shedOnEMFILE deals with a listener that has no descriptor for its next
// client: another client's handshake makes room, or the next client is closed.
// It reports false if there is nothing but to wait.
func (s *Server) shedOnEMFILE(l net.Listener, extra *reservedFD) bool {
	s.mu.Lock()
	victim := s.admission.evict()
	if victim != nil {
		s.dropped++
	}
	s.mu.Unlock()
	if victim != nil {
		s.evict(victim, errNoFDs)
		return true
	}
	if !extra.release() {
		return false
	}
	defer extra.acquire()
	nc, err := l.Accept()
	if err != nil {
		return false
	}
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
	s.refusals.Warn(s.log(), "connection refused", "event", "connection_refused", "client", nameOf(nc), "error", errNoFDs)
	nc.Close()
	return true
}
