package nbd

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/viablk/viablk/internal/eventfd"
)

// reservedFD is a file descriptor that a server keeps for the time when the
// process has no other left: with it a client is accepted and closed, which
// tells it at once what it would wait for in the listener's backlog otherwise.
// Zero is none. It is safe for concurrent use.
//
// While the descriptor is lent for an accept, or before it is there again, a
// client that opens its own may take it. So a client that has all of them goes
// on only if there is one to reserve beside; otherwise it is refused, which
// gives back more than one.
type reservedFD struct{ fd atomic.Int64 }

// acquire gets the descriptor, unless it is there.
func (r *reservedFD) acquire() error {
	if r.fd.Load() > 0 {
		return nil
	}
	fd, err := eventfd.New()
	if err == nil && !r.fd.CompareAndSwap(0, int64(fd)) {
		_ = eventfd.Close(fd)
	}
	return err
}

// release makes room for one descriptor, or reports that it cannot.
func (r *reservedFD) release() bool {
	fd := r.fd.Swap(0)
	return fd > 0 && eventfd.Close(int(fd)) == nil
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
func (s *Server) shedOnEMFILE(l net.Listener) bool {
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
	if !s.reserved.release() {
		return false
	}
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
