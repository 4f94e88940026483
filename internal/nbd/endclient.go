package nbd

import (
	"errors"
	"slices"

	"github.com/viablk/viablk/internal/block"
)

// Errors of EndClient.
var (
	ErrNoClient = errors.New("there is no such client")
	ErrKernel   = errors.New("the client is the kernel: detach its device")
)

// maxEnded bounds how many IDs of ended clients a server remembers.
const maxEnded = 1024

// EndClient ends the connection of a client that has an export, by the ID in
// its status, as Drain does: what has arrived is executed and answered, and the
// connection is closed. It returns at once, without an error for a client that
// it ended before.
func (s *Server) EndClient(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.ended, id) {
		return nil
	}
	for c := range s.conns {
		switch {
		case c.counters == nil || c.idText() != id:
			continue
		case c.kernel:
			return ErrKernel
		}
		if len(s.ended) == maxEnded {
			s.ended = slices.Delete(s.ended, 0, 1)
		}
		s.ended = append(s.ended, id)
		c.ending.Store(true)
		c.interrupt()
		return nil
	}
	return ErrNoClient
}

// EndExport ends the connections of clients that have a disk, as EndClient
// does, or with cut at once, without the answers to what is in flight. The
// kernel's connections it leaves alone. It returns at once.
func (s *Server) EndExport(device block.Device, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		switch {
		case c.counters == nil || c.device != device || c.kernel:
		case cut:
			c.stop()
		default:
			c.ending.Store(true)
			c.interrupt()
		}
	}
}
