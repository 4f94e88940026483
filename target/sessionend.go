package target

import (
	"encoding/hex"
	"slices"
	"sync"
)

// endedReason is what an initiator hears that returns after its session was
// ended.
const endedReason = "the target's administrator has ended the session: attach the disk again"

// maxEnded bounds how many IDs of sessions and writers an endedTable remembers.
const maxEnded = 4096

// endedTable remembers sessions that have ended: their IDs, or those of their
// writers, by which a device of an initiator is known over all of its sessions.
// Both are random. The oldest are forgotten.
type endedTable struct {
	mu sync.Mutex
	// +checklocks:mu
	list [][16]byte
	// +checklocks:mu
	set map[[16]byte]struct{}
}

func (t *endedTable) add(id [16]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.set[id]; ok || id == [16]byte{} {
		return
	}
	if t.set == nil {
		t.set = make(map[[16]byte]struct{})
	}
	if len(t.list) == maxEnded {
		delete(t.set, t.list[0])
		t.list = slices.Delete(t.list, 0, 1)
	}
	t.list = append(t.list, id)
	t.set[id] = struct{}{}
}

func (t *endedTable) has(id [16]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.set[id]
	return ok
}

// EndSession ends a session, and refuses its initiator's device from now on: it
// is told to go, and why when it returns. Requests in flight are cut off.
// EndSession reports whether there is such a session, or was until EndSession
// ended it.
func (s *Server) EndSession(id string) bool {
	var key [16]byte
	if len(id) != hex.EncodedLen(len(key)) {
		return false
	}
	if _, err := hex.Decode(key[:], []byte(id)); err != nil {
		return false
	}
	s.sessions.mu.Lock()
	x := s.sessions.byID[key]
	s.sessions.mu.Unlock()
	if x == nil {
		return s.ended.has(key)
	}
	s.ended.add(key)
	for _, writer := range x.writers() {
		s.ended.add(writer)
	}
	s.setReason(x, "ended by the administrator")
	x.end()
	x.controls((*signals).dismiss)
	return true
}

// setReason sets why a session ends, unless that is known already.
func (s *Server) setReason(x *session, reason string) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	if x.counts.reason == "" {
		x.counts.reason = reason
	}
}

// writers returns the writers of the exports that the session opened.
func (s *session) writers() (all [][16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		all = append(all, o.writer)
	}
	return all
}
