package target

import (
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// session is what an initiator has at this target: its control connection, its
// I/O connections and the exports it opened. It ends with its control connection.
type session struct {
	id    [16]byte
	gen   uint64
	nonce uint64
	epoch uint32

	mu    sync.Mutex
	ended bool
	conns map[uint16]*conn // by connection index; 0 is the control connection
	opens []*opened        // by export handle
}

// opened is an open export of a session. It is immutable but for closed.
type opened struct {
	id       uint32
	mode     wire.OpenMode
	export   *exported
	info     block.Info // read-only if the open is
	response wire.OpenResponse
	closed   bool // guarded by session.mu
}

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
func (t *sessionTable) join(c *conn, q *wire.LoginRequest) (*session, wire.LoginReason, string) {
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
	case s.conns[q.Conn] != nil:
		return nil, wire.ReasonConn, fmt.Sprintf("connection %d exists", q.Conn)
	}
	s.conns[q.Conn] = c
	return s, wire.ReasonNone, ""
}

// leave removes a connection; the control connection takes the session along.
func (t *sessionTable) leave(c *conn, exports *exportTable) {
	s := c.session
	if s == nil {
		return
	}
	s.mu.Lock()
	delete(s.conns, c.index)
	last := c.index == 0
	var opens []*opened
	if last {
		s.ended = true
		for _, other := range s.conns {
			other.stop(stopNow)
		}
		opens, s.opens = s.opens, nil
	}
	s.mu.Unlock()
	if !last {
		return
	}
	for _, o := range opens {
		if !o.closed {
			exports.close(s, o.export)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, s.id)
}

// open opens an export; the same open ID gets the same handle.
func (s *session) open(t *exportTable, q *wire.OpenRequest) wire.OpenResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		if o.id == q.OpenID && !o.closed {
			return o.response
		}
	}
	if len(s.opens) >= maxOpens {
		return wire.OpenResponse{Status: wire.StatusLimit, Reason: "the session has too many exports open"}
	}
	x, status, reason := t.open(s, q)
	if x == nil {
		return wire.OpenResponse{Status: status, Reason: reason}
	}
	o := &opened{id: q.OpenID, mode: q.Mode, export: x, info: x.info}
	if q.Mode == wire.OpenReadOnly {
		o.info.Features |= block.ReadOnly
	}
	o.response = wire.OpenResponse{
		Export: uint16(len(s.opens)), ExportUUID: x.uuid, SizeGen: 1,
		Size: uint64(o.info.Size), MinimumBlock: o.info.MinimumBlock, PreferredBlock: o.info.PreferredBlock,
		Features: uint32(o.info.Features), Verifier: x.verifier, Name: x.Name, Description: x.Description,
	}
	s.opens = append(s.opens, o)
	return o.response
}

// close closes an export; its handle is not given out again.
func (s *session) close(t *exportTable, q *wire.CloseRequest) wire.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(q.Export) >= len(s.opens) || s.opens[q.Export].id != q.OpenID {
		return wire.StatusNotFound
	}
	o := s.opens[q.Export]
	if !o.closed {
		o.closed = true
		t.close(s, o.export)
	}
	return wire.StatusOK
}

// lookup returns an open export by handle, or nil.
func (s *session) lookup(handle uint16) *opened {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(handle) >= len(s.opens) || s.opens[handle].closed {
		return nil
	}
	return s.opens[handle]
}
