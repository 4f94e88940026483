package target

import (
	"github.com/viablk/viablk/target/reserve"
)

// removedReason is what an initiator hears that returns after its disk was
// removed.
const removedReason = "the target's administrator has removed the export"

// DrainDisk ends the sessions that have a disk open which is not exported any
// more, as Drain ends all: what is in flight is answered, the initiator is
// asked to log out, and told why when it returns. Other exports of such a
// session come back with the next session. DrainDisk does not wait; it may be
// called again.
func (s *Server) DrainDisk(disk *reserve.Disk) {
	for _, x := range s.sessionsOf(disk) {
		s.setReason(x, "its export was removed")
		x.drain()
	}
}

// CutDisk ends the sessions that have a disk open at once: requests in flight
// are cut off.
func (s *Server) CutDisk(disk *reserve.Disk) {
	for _, x := range s.sessionsOf(disk) {
		s.setReason(x, "its export was removed, requests in flight were cut off")
		x.end()
		x.controls((*signals).dismiss)
	}
}

// sessionsOf returns the sessions that have a disk open, and remembers their
// writers as those of a removed disk.
func (s *Server) sessionsOf(disk *reserve.Disk) (with []*session) {
	for _, x := range s.sessions.all() {
		writers := x.writersOf(disk)
		for _, writer := range writers {
			s.removed.add(writer)
		}
		if len(writers) > 0 {
			with = append(with, x)
		}
	}
	return with
}

// writersOf returns the writers with which the session has a disk open.
func (s *session) writersOf(disk *reserve.Disk) (writers [][16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		if !o.closed.Load() && o.export.Reservations == disk {
			writers = append(writers, o.writer)
		}
	}
	return writers
}

// drain refuses further joins and opens, and lets the connections end when what
// is in flight is answered.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, c := range s.conns {
		c.stop(stopDrain)
	}
	s.controls(func(c *signals) { c.stop(stopDrain) })
}
