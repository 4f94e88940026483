package target

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/wire"
)

// A session has a path for each pair of addresses: a control connection, and
// the I/O connections that name its number and epoch. The connections of a path
// end with its control connection, and the session ends with its last path.
//
// An initiator that has lost a path does not know whether requests of it are
// still on their way to the disk, or in it. It fences the path over another
// one, and executes these requests again when the fence holds: no connection of
// the path is left then, so that none of its requests is in a disk and no
// transfer of it accesses the initiator's memory, and none joins any more.

// maxPaths is how many paths a session has at most.
const maxPaths = 8

// path is a path of a session. Session.mu guards the fields but control.
type path struct {
	epoch uint32 // of its connections; of those to come it is greater
	live  bool   // connections may join
	conns int    // that have not left, with that of control

	control atomic.Pointer[signals] // nil once it has left
}

// begin makes the path with its control connection.
func (p *path) begin(c *signals, epoch uint32) {
	p.epoch, p.live, p.conns = epoch, true, 1
	p.control.Store(c)
}

// firstEpoch is that of the control connection that begins a session. Those of
// a greater epoch join it.
const firstEpoch = 1

// errNoPath refuses the number of a path.
func errNoPath(id uint16) string {
	return fmt.Sprintf("path %d, but a session has at most %d", id, maxPaths)
}

// joinPath adds a path to a session, with its control connection.
func (t *sessionTable) joinPath(j *joining, q *wire.LoginRequest) (*session, wire.LoginReason, string) {
	defer contain.Shared()
	s, reason, text := t.find(j, q)
	if s == nil {
		return nil, reason, text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason, text = s.admitLocked(j, q); reason != wire.ReasonNone {
		return nil, reason, text
	}
	p := &s.paths[q.PathID]
	switch {
	case q.PathEpoch <= p.epoch:
		return nil, wire.ReasonEpoch, fmt.Sprintf("the path is at epoch %d", p.epoch)
	case p.conns > 0:
		return nil, wire.ReasonFence, fmt.Sprintf("the path has connections of epoch %d", p.epoch)
	}
	p.begin(j.signals, q.PathEpoch)
	if s.preemptedBy.Load() != nil { // which may not have seen the connection
		j.signals.stop(stopNow)
	}
	return s, wire.ReasonNone, ""
}

// fence ends the connections of a path with an epoch up to this one, and
// refuses such from now on. It returns how many have not left.
func (s *session) fence(id uint16, epoch uint32) (left int) {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.paths[id]
	switch {
	case p.conns == 0:
		p.epoch = max(p.epoch, epoch)
	case p.epoch <= epoch:
		s.stopPathLocked(id)
		if c := p.control.Load(); c != nil {
			c.stop(stopNow)
		}
		return p.conns
	}
	return 0 // those before p.epoch had left when it began
}

// stopPathLocked stops the I/O connections of a path, and admits none any more.
//
// +checklocks:s.mu
func (s *session) stopPathLocked(id uint16) {
	s.paths[id].live = false
	for _, index := range slices.Sorted(maps.Keys(s.conns)) { // a simulation repeats the order
		if c := s.conns[index]; c.path == id {
			c.stop(stopNow)
		}
	}
}

// endPath ends a path with its control connection. It reports whether the
// session ends with it.
func (s *session) endPath(id uint16) (last bool) {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopPathLocked(id)
	for i := range s.paths {
		if s.paths[i].live {
			return false
		}
	}
	s.ended = true
	return true
}

// endPath ends the path of a control connection, and its part in a rekey.
func (w *worker) endPath() {
	if w.login.session.endPath(w.login.path) {
		w.conn.server.setReason(w.login.session, w.endReason())
	}
	if o := w.control.resizing; o != nil {
		o.untold.Store(true)
	}
	if w.rekey.retires {
		w.conn.server.sessions.retireKeys(w.login.session)
	}
}

// controls calls f for the control connection of each path. It takes no lock.
func (s *session) controls(f func(*signals)) {
	for i := range s.paths {
		if c := s.paths[i].control.Load(); c != nil {
			f(c)
		}
	}
}

// stopControls ends the session by its control connections, but not by one.
func (s *session) stopControls(but *signals) {
	s.controls(func(c *signals) {
		if c != but {
			c.stop(stopNow)
		}
	})
}

// uses reports whether the session has opened an export.
func (s *session) uses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.opens) > 0
}

// alone reports whether at most one connection is left, that of the caller.
func (s *session) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.conns)
	s.controls(func(*signals) { n++ })
	return n <= 1
}

// fence serves a Fence. The initiator asks again until the fence holds.
func (k *controller) fence(msg []byte) error {
	var q wire.Fence
	if err := q.Decode(msg); err != nil {
		return err
	}
	a := wire.FenceResponse{ID: q.ID, PathEpoch: k.login.epoch, Epoch: q.Epoch, PathID: q.PathID}
	switch itself := q.PathID == k.login.path && q.Epoch >= k.login.epoch; {
	case q.PathID >= maxPaths || q.Cursor != 0 || itself:
		a.Status = wire.StatusInvalid
	case q.Force:
		a.Status = wire.StatusNotSupported
	default:
		if a.Busy = uint32(k.login.session.fence(q.PathID, q.Epoch)); a.Busy > 0 {
			a.Status = wire.StatusBusy
		} else {
			k.log.Debug("path fenced", "event", "path_fenced", "path", q.PathID, "epoch", q.Epoch)
		}
	}
	return k.send(&a)
}
