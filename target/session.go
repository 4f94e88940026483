package target

import (
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// session is what an initiator has at this target: its control connection, its
// I/O connections and the exports it opened. It ends with its control
// connection; what it opened is given back when no connection of it is left, so
// that nobody else gets an export while a late write of it is under way.
type session struct {
	id    [16]byte
	gen   uint64
	nonce uint64
	epoch uint32

	mu    sync.Mutex
	ended bool             // nobody joins or opens any more
	conns map[uint16]*conn // by connection index; 0 is the control connection
	opens []*opened        // by export handle
}

// opened is an open export of a session. What is not guarded is immutable.
type opened struct {
	id       uint32
	mode     wire.OpenMode
	export   *exported
	info     block.Info // by which commands are checked, but for the size; read-only if the open is
	response wire.OpenResponse

	size    atomic.Int64  // bytes: what commands are checked by, and the initiator is told
	sizeGen atomic.Uint32 // of size

	closed   atomic.Bool // takes no new commands; set under session.mu
	users    int         // connections that have it in use; guarded by session.mu
	returned bool        // to the export table; guarded by session.mu
}

// client names the session to disks that tell their clients apart.
func (s *session) client() string { return "session " + hex.EncodeToString(s.id[:]) }

// sessionTable finds sessions by ID.
type sessionTable struct {
	mu   sync.Mutex
	byID map[[16]byte]*session
}

// begin creates the session of a control connection.
func (t *sessionTable) begin(c *conn, q *wire.LoginRequest) (*session, wire.LoginReason, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[q.SessionID] != nil {
		return nil, wire.ReasonSession, "the session exists; it ends when its control connection does"
	}
	s := &session{id: q.SessionID, gen: q.SessionGen, nonce: q.Nonce, epoch: q.PathEpoch, conns: map[uint16]*conn{0: c}}
	t.byID[s.id] = s
	return s, wire.ReasonNone, ""
}

// join adds an I/O connection to its session.
func (t *sessionTable) join(c *conn, q *wire.LoginRequest, most uint16) (*session, wire.LoginReason, string) {
	t.mu.Lock()
	s := t.byID[q.SessionID]
	t.mu.Unlock()
	if s == nil {
		return nil, wire.ReasonSession, "no such session"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, wire.ReasonSession, "the session has ended"
	case s.nonce != q.Nonce || s.gen != q.SessionGen:
		return nil, wire.ReasonGeneration, "the session is another process's"
	case s.epoch != q.PathEpoch:
		return nil, wire.ReasonEpoch, fmt.Sprintf("the path is at epoch %d", s.epoch)
	case q.Conn > most:
		return nil, wire.ReasonConn, fmt.Sprintf("connection %d, but a session has at most %d", q.Conn, most)
	case s.conns[q.Conn] != nil:
		return nil, wire.ReasonConn, fmt.Sprintf("connection %d exists", q.Conn)
	}
	s.conns[q.Conn] = c
	return s, wire.ReasonNone, ""
}

// end lets nobody join or open any more and stops the I/O connections.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for index, other := range s.conns {
		if index != 0 {
			other.stop(stopNow)
		}
	}
}

// alone reports whether no I/O connection is left.
func (s *session) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) <= 1
}

// leave removes a connection that touches nothing any more. The control
// connection is told when it is the last; the last takes the session along.
func (t *sessionTable) leave(c *conn, exports *exportTable) {
	s := c.session
	s.mu.Lock()
	delete(s.conns, c.index)
	last := s.ended && len(s.conns) == 0
	if control := s.conns[0]; control != nil && len(s.conns) == 1 {
		control.nudge()
	}
	s.mu.Unlock()
	if last {
		t.finish(s, exports)
	}
}

// finish gives back what the session has open and forgets the session. It may be
// called more than once.
func (t *sessionTable) finish(s *session, exports *exportTable) {
	s.mu.Lock()
	for _, o := range s.opens {
		s.giveBackLocked(o, exports)
	}
	s.opens = nil
	s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[s.id] == s {
		delete(t.byID, s.id)
	}
}

// giveBackLocked returns an open export to the table, once.
func (s *session) giveBackLocked(o *opened, exports *exportTable) {
	if !o.returned {
		o.returned = true
		exports.close(o.export, o.mode)
	}
}

// open opens an export; the same open ID gets the same handle.
func (s *session) open(t *exportTable, q *wire.OpenRequest) wire.OpenResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		if o.id == q.OpenID && !o.closed.Load() {
			return o.present()
		}
	}
	switch {
	case s.ended:
		return wire.OpenResponse{Status: wire.StatusShutdown, Reason: "the session has ended"}
	case len(s.opens) >= maxOpens:
		return wire.OpenResponse{Status: wire.StatusLimit, Reason: fmt.Sprintf("the session has opened exports %d times", maxOpens)}
	}
	x, status, reason := t.open(s, q)
	if x == nil {
		return wire.OpenResponse{Status: status, Reason: reason}
	}
	o := &opened{id: q.OpenID, mode: q.Mode, export: x, info: x.info()}
	if q.Mode == wire.OpenReadOnly {
		o.info.Features |= block.ReadOnly
	}
	o.response = wire.OpenResponse{
		Export: uint16(len(s.opens)), ExportUUID: x.uuid, MinimumBlock: o.info.MinimumBlock, PreferredBlock: o.info.PreferredBlock,
		Features: uint32(o.info.Features), Verifier: x.verifier, Name: x.Name, Description: x.Description,
	}
	o.size.Store(o.info.Size)
	o.sizeGen.Store(1)
	s.opens = append(s.opens, o)
	return o.present()
}

// close closes an export: new commands are refused from now on, and the export is
// given back when those under way are done. Its handle is not given out again.
func (s *session) close(t *exportTable, q *wire.CloseRequest) wire.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(q.Export) >= len(s.opens) || s.opens[q.Export].id != q.OpenID {
		return wire.StatusNotFound
	}
	o := s.opens[q.Export]
	o.closed.Store(true)
	if o.users == 0 {
		s.giveBackLocked(o, t)
		return wire.StatusOK
	}
	for _, c := range s.conns {
		c.nudge()
	}
	return wire.StatusOK
}

// use returns an open export by handle for a connection, which calls unuse, or
// nil.
func (s *session) use(handle uint16) *opened {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(handle) >= len(s.opens) || s.opens[handle].closed.Load() {
		return nil
	}
	s.opens[handle].users++
	return s.opens[handle]
}

// unuse says that a connection has no command of the export under way, nor will
// have one.
func (s *session) unuse(o *opened, t *exportTable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.users--
	if o.users == 0 && o.closed.Load() {
		s.giveBackLocked(o, t)
	}
}
