package target

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target/reserve"
)

// session is the state of an initiator at this target: its paths, its I/O
// connections and the exports it opened. It ends with its last path; its
// exports are released when no connection of it is left, so that no other
// session opens an export while a late write is in flight.
type session struct {
	id     [16]byte
	client               // of its first connection; see joining for the others
	counts sessionCounts // guarded by Sessions.mu
	// +checklocks:mu
	gen uint64
	// +checklocks:mu
	nonce uint64

	authenticated atomic.Pointer[authentication] // of the control connection; nil in clear
	generation    atomic.Uint64                  // of its keys
	oldKeys       [16]byte                       // name of those before a rekey; guarded by sessionTable.mu

	paths       [maxPaths]path
	preemptedBy atomic.Pointer[string] // another client, which ended the session; nil: none
	letGo       atomic.Bool            // in a drain: the connections end

	mu sync.Mutex
	// +checklocks:mu
	ended bool // no join or open succeeds any more
	// +checklocks:mu
	other *access.Identity // of connections with another identity; nil: none
	// +checklocks:mu
	conns map[uint16]*signals // for I/O, by connection index
	// +checklocks:mu
	opens []*opened // by export handle
}

// opened is an open export of a session. Fields without a guard are immutable.
type opened struct {
	id     uint32
	writer [16]byte // of the initiator's device
	mode   wire.OpenMode
	export *exported
	hold   *reserve.Reservation
	// info is used to check commands, except for the size; read-only if the
	// open is.
	info     block.Info
	response wire.OpenResponse

	size    atomic.Int64  // bytes; commands are checked against it
	sizeGen atomic.Uint32 // of size
	untold  atomic.Bool   // the event of size was lost with its path

	closed   atomic.Bool // new commands are refused; set under session.mu
	users    int         // connections that have it in use; guarded by session.mu
	returned bool        // to the export table; guarded by session.mu
}

// clientName names the session to disks that distinguish their clients.
func (s *session) clientName() string { return "session " + hex.EncodeToString(s.id[:]) }

// flush makes durable what the session wrote, of which nothing is in flight. It
// returns false if that failed.
func (s *session) flush(scheduler sched.Scheduler) bool {
	s.mu.Lock()
	opens := slices.Clone(s.opens)
	s.mu.Unlock()
	for _, o := range opens {
		if o.info.Features&(block.ReadOnly|block.CanFlush) != block.CanFlush {
			continue
		}
		if err := flushDisk(scheduler, o.export.Device); err != nil {
			return false
		}
	}
	return true
}

// flushDisk makes everything durable that a disk has answered.
func flushDisk(scheduler sched.Scheduler, d block.Device) (err error) {
	q, err := d.NewQueue(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	flush := block.Request{Op: block.Flush}
	if !q.Submit(&flush) {
		return errors.New("a new queue takes no request")
	}
	q.Kick()
	var done [1]*block.Request
	for q.Reap(done[:]) == 0 {
		if d, ok := q.Arm(); ok {
			_ = scheduler.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, d) // Reap tells
		}
	}
	return flush.Err
}

// preempted ends the session because another client takes an export of it. It
// takes no lock: the other client's session may be preempted at the same time.
func (s *session) preempted(by string) {
	s.preemptedBy.CompareAndSwap(nil, &by)
	s.stopControls(nil)
}

// sessionTable finds sessions by ID.
type sessionTable struct {
	mu sync.Mutex
	// +checklocks:mu
	byID map[[16]byte]*session
	// +checklocks:mu
	byKeys map[[16]byte]*session // by the name of the keys
}

// client is an initiator that has logged in.
type client struct {
	identity access.Identity
	name     string    // the identity as text
	peer     string    // its address, or its process
	server   *Server   // that it logged in at
	since    time.Time // of the login
}

// begin creates the session of a control connection, which authenticated as a
// says, or in clear.
func (t *sessionTable) begin(c *signals, from client, q *wire.LoginRequest, a *authentication) (*session, wire.LoginReason, string) {
	defer contain.Shared()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case q.PathID >= maxPaths:
		return nil, wire.ReasonConn, errNoPath(q.PathID)
	case t.byID[q.SessionID] != nil:
		return nil, wire.ReasonSession, "the session exists; it ends when its control connections do"
	}
	s := &session{id: q.SessionID, client: from, gen: q.SessionGen, nonce: q.Nonce, conns: make(map[uint16]*signals)}
	s.paths[q.PathID].begin(c, q.PathEpoch)
	t.byID[s.id] = s
	if a != nil {
		s.authenticated.Store(a)
		s.generation.Store(1)
		t.byKeys[a.Session.Name()] = s
	}
	return s, wire.ReasonNone, ""
}

// all returns the sessions, in no order.
func (t *sessionTable) all() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// admitLocked returns why a connection does not join the session as q says, if
// so. One of another client learns nothing of the session.
//
// +checklocks:s.mu
func (s *session) admitLocked(j *joining, q *wire.LoginRequest) (wire.LoginReason, string) {
	ours := s.nonce == q.Nonce && s.gen == q.SessionGen
	switch {
	case !ours && j.identity.Key() != s.identity.Key():
		return wire.ReasonSession, "no such session"
	case s.ended:
		return wire.ReasonSession, "the session has ended"
	case !ours:
		return wire.ReasonGeneration, "the session is another process's"
	case q.PathID >= maxPaths:
		return wire.ReasonConn, errNoPath(q.PathID)
	}
	return s.admitIdentityLocked(j)
}

// join adds an I/O connection to a path of its session.
func (t *sessionTable) join(j *joining, q *wire.LoginRequest, most uint16) (*session, wire.LoginReason, string) {
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
	case !p.live || p.epoch != q.PathEpoch:
		return nil, wire.ReasonEpoch, fmt.Sprintf("the path is not at epoch %d", q.PathEpoch)
	case q.Conn > most:
		return nil, wire.ReasonConn, fmt.Sprintf("connection %d, but a session has at most %d", q.Conn, most)
	case s.conns[q.Conn] != nil:
		return nil, wire.ReasonConn, fmt.Sprintf("connection %d exists", q.Conn)
	}
	s.conns[q.Conn] = j.signals
	p.conns++
	return s, wire.ReasonNone, ""
}

// end refuses further joins and opens and stops the I/O connections.
func (s *session) end() {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for id := range s.paths {
		s.stopPathLocked(uint16(id))
	}
}

// served reports whether an I/O connection is left.
func (s *session) served() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

// life changes when a packet on any connection of a path shows that the
// initiator is alive: on a slow link, payload holds up the control connection.
func (s *session) life(id uint16) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.path == id {
			n += c.vi.Life()
		}
	}
	if c := s.paths[id].control.Load(); c != nil {
		n += c.vi.Life()
	}
	return n
}

// remove removes a connection that no longer touches a disk. It wakes the
// control connections: one may be the last connection, or the others be quiet.
// Removing the last connection finishes the session.
func (t *sessionTable) remove(s *session, l *login, exports *exportTable) {
	defer contain.Shared()
	s.mu.Lock()
	p := &s.paths[l.path]
	if p.conns--; l.role == wire.RoleControl {
		p.control.Store(nil)
	} else {
		delete(s.conns, l.index)
	}
	last := s.ended && len(s.conns) == 0
	for i := range s.paths {
		last = last && s.paths[i].conns == 0
	}
	s.controls((*signals).recheckSession)
	s.mu.Unlock()
	if last {
		t.finish(s, exports)
	}
}

// finish releases the exports of the session and removes it from the table. It
// may be called more than once.
func (t *sessionTable) finish(s *session, exports *exportTable) {
	defer contain.Shared()
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
	if r := s.authenticated.Load(); r != nil && t.byKeys[r.Session.Name()] == s {
		delete(t.byKeys, r.Session.Name())
		delete(t.byKeys, s.oldKeys)
		r.Session.Clear()
	}
}

// giveBackLocked returns an open export to the table, once.
//
// +checklocks:s.mu
func (s *session) giveBackLocked(o *opened, exports *exportTable) {
	if !o.returned {
		o.returned = true
		o.hold.Release()
	}
}

// open opens an export; the same open ID gets the same handle, also over two
// paths at a time. It may block in the disk. Of a refusal by rights, why tells
// the log what the answer does not.
func (s *session) open(t *exportTable, q *wire.OpenRequest) (a wire.OpenResponse, why string) {
	if o, a := s.opened(q); o != nil || a.Status != wire.StatusOK {
		return a, ""
	}
	x, verdict, why := s.findForAll(t, q.Name, accessMode(q))
	switch verdict {
	case access.Hidden:
		return wire.OpenResponse{Status: wire.StatusNotFound, Reason: fmt.Sprintf("no export is named %q", clip(q.Name))}, why
	case access.MayRead:
		return wire.OpenResponse{Status: wire.StatusPermission, Reason: "the client may only read the export; attach it read-only"}, why
	}
	return s.openFound(t, x, q), ""
}

// openFound opens an export that the client may use.
func (s *session) openFound(t *exportTable, x *exported, q *wire.OpenRequest) wire.OpenResponse {
	if why := x.refuseOverdue(q); why != "" {
		return wire.OpenResponse{Status: wire.StatusBusy, Reason: why}
	}
	hold, status, reason := t.open(s, x, q)
	if hold == nil {
		return wire.OpenResponse{Status: status, Reason: reason}
	}
	var o *opened
	defer func() {
		if o == nil { // a panic of the device
			hold.Release()
		}
	}()
	o = &opened{id: q.OpenID, writer: q.Writer, mode: q.Mode, export: x, hold: hold, info: x.info()}
	if q.Mode == wire.OpenReadOnly {
		o.info.Features |= block.ReadOnly
	}
	o.response = wire.OpenResponse{
		ExportUUID: x.identity.UUID(), MinimumBlock: o.info.MinimumBlock, PreferredBlock: o.info.PreferredBlock,
		Features: uint32(o.info.Features), Verifier: x.verifier(), Generation: hold.Generation(),
		Name: x.Name, Description: x.Description,
	}
	o.size.Store(o.info.Size)
	o.sizeGen.Store(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, a := s.openedLocked(q); other != nil || a.Status != wire.StatusOK {
		hold.Release()
		return a
	}
	if s.overtakenLocked(x, accessMode(q)) {
		hold.Release()
		return wire.OpenResponse{Status: wire.StatusPermission, Reason: errNoRights}
	}
	o.response.Export = uint16(len(s.opens))
	s.opens = append(s.opens, o)
	return o.present()
}

// opened returns the open export of an open ID with its answer, or the reason
// why the session opens no more.
func (s *session) opened(q *wire.OpenRequest) (*opened, wire.OpenResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.openedLocked(q)
}

// +checklocks:s.mu
func (s *session) openedLocked(q *wire.OpenRequest) (*opened, wire.OpenResponse) {
	for _, o := range s.opens {
		if o.id == q.OpenID && !o.closed.Load() {
			return o, o.present()
		}
	}
	switch {
	case s.ended:
		return nil, wire.OpenResponse{Status: wire.StatusShutdown, Reason: "the session has ended"}
	case len(s.opens) >= maxOpens:
		return nil, wire.OpenResponse{Status: wire.StatusLimit, Reason: fmt.Sprintf("the session has opened exports %d times", maxOpens)}
	}
	return nil, wire.OpenResponse{}
}

// close closes an export: new commands are refused from now on, and the export
// is released when those in flight are done. Its handle is not reused.
func (s *session) close(t *exportTable, q *wire.CloseRequest) wire.Status {
	defer contain.Shared()
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
	for _, index := range slices.Sorted(maps.Keys(s.conns)) {
		s.conns[index].recheckSession()
	}
	return wire.StatusOK
}

// acquire returns an open export by handle for a connection, or nil. The
// connection calls release.
func (s *session) acquire(handle uint16) *opened {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(handle) >= len(s.opens) || s.opens[handle].closed.Load() {
		return nil
	}
	s.opens[handle].users++
	return s.opens[handle]
}

// release ends the use of an export by a connection, which has no command of it
// in flight.
func (s *session) release(o *opened, t *exportTable) {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	o.users--
	if o.users == 0 && o.closed.Load() {
		s.giveBackLocked(o, t)
	}
}
