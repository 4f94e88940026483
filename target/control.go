package target

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// Protocol errors of control messages; each ends the connection.
var (
	errNoLogin    = errors.New("the first message is no login")
	errLoginAgain = errors.New("the connection is logged in")
	errNoRequest  = errors.New("not a request")
	errRole       = errors.New("not on a connection of this role")
	errRequests   = errors.New("more control requests at once than a connection may have")
)

// controller owns the control messages of a connection, and its logout. Control
// messages are rare, so it may allocate.
type controller struct {
	server  *Server
	conn    *conn
	signals *signals // of the connection
	log     *slog.Logger
	carrier *carrier.Carrier
	login   login
	scratch []byte // a message in one piece
	calls   diskCalls

	resizing   *opened   // its resize event has no ack yet
	sizesDue   time.Time // before it, disks are not asked their sizes
	events     uint32    // sent
	closing    bool      // logged out or refused: ends when the answer is sent
	loggingOut bool      // logged out, answered when nothing of it is in flight
	logoutID   uint32
	leaveBy    time.Time // when the connections end; zero: no drain was announced
	news       exportNews
}

// controlMessage checks and serves a control message. An error ends the
// connection.
func (w *worker) controlMessage(msg []byte) error {
	h, known, err := w.control.check(msg)
	switch {
	case w.conn.server.guard != nil && !w.carrier.Sealed():
		err = w.authenticate(msg)
	case err == nil && h.Opcode == wire.OpAuth && w.login.role == wire.RoleControl && w.login.features&wire.FeatureRekey != 0:
		err = w.rekeyMessage(msg)
	case err == nil && h.Opcode == wire.OpEventAck && w.login.role == wire.RoleControl:
		err = w.acknowledged(msg)
	case h.Opcode == wire.OpAuth && w.login.role == 0 && (err == nil || errors.Is(err, errNoLogin)):
		err = w.control.refuseAuth(h)
	case err != nil:
	case !known:
		err = w.control.notSupported(h)
	case h.Opcode == wire.OpLogin:
		err = w.logIn(msg)
	case h.Opcode == wire.OpKeepAlive && w.login.role == wire.RoleIO && w.login.features&wire.FeatureImmediate == 0:
		var q wire.KeepAlive
		if err = q.Decode(msg); err == nil {
			err = w.send.acknowledgeKeepalive(q.ID) // among many answers
		}
	default:
		err = w.control.dispatch(h, msg)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", h.Opcode, err)
	}
	return nil
}

// join copies a message into one piece, which is valid until the next call.
func (k *controller) join(r *carrier.Receive, length uint32) []byte {
	n := copy(k.scratch, r.Head)
	n += copy(k.scratch[n:], r.Data[:length-wire.HeaderSize])
	return k.scratch[:n]
}

// check checks the header of a message against the state of the connection. It
// reports whether the opcode is known.
func (k *controller) check(msg []byte) (h wire.ControlHeader, known bool, err error) {
	h, err = wire.PeekControl(msg)
	known = !errors.Is(err, wire.ErrUnknownOpcode)
	if err != nil && known {
		return h, known, err
	}
	loggedIn := k.login.role != 0
	switch {
	case !loggedIn && h.Opcode != wire.OpLogin:
		return h, known, errNoLogin
	case loggedIn && h.Opcode == wire.OpLogin:
		return h, known, errLoginAgain
	case loggedIn && h.PathEpoch != k.login.epoch:
		return h, known, errEpoch
	case !isRequest(h.Opcode):
		return h, known, errNoRequest
	}
	return h, known, nil
}

// isRequest reports whether an opcode is in the range of requests, known or
// not.
func isRequest(op wire.Opcode) bool { return op >= wire.OpAbort && op < wire.OpReply }

// notSupported answers a request that this target does not serve.
func (k *controller) notSupported(h wire.ControlHeader) error {
	return k.send(&wire.Refused{ID: h.ID, PathEpoch: k.login.epoch, Status: wire.StatusNotSupported, Request: h.Opcode})
}

// dispatch decodes and serves a control message of the connection's role.
func (k *controller) dispatch(h wire.ControlHeader, msg []byte) error {
	op := h.Opcode
	switch {
	case op == wire.OpKeepAlive:
		var q wire.KeepAlive
		if err := q.Decode(msg); err != nil {
			return err
		}
		return k.send(&wire.KeepAlive{ID: q.ID, PathEpoch: k.login.epoch, Ack: true})
	case op == wire.OpDiscover && (k.login.role == wire.RoleDiscover || k.login.role == wire.RoleControl):
		return k.discover(msg)
	case op == wire.OpLogout:
		return k.logout(msg)
	case k.login.role != wire.RoleControl:
		return errRole
	case op == wire.OpOpen:
		return k.open(msg)
	case op == wire.OpClose:
		var q wire.CloseRequest
		if err := q.Decode(msg); err != nil {
			return err
		}
		return k.send(&wire.CloseResponse{ID: q.ID, PathEpoch: k.login.epoch, Status: k.login.session.close(k.server.exports, &q)})
	case op == wire.OpFence:
		return k.fence(msg)
	default:
		return k.notSupported(h)
	}
}

// send sends a control message.
func (k *controller) send(m wire.Message) error {
	s := k.carrier.AcquireLargeSend(wire.MaxControlSize)
	if s == nil {
		return errRequests
	}
	n, err := m.Encode(s.Head)
	if err != nil {
		return err
	}
	s.Step = stepControl
	return k.carrier.StageMessage(s, n, carrier.Span{})
}

// open opens an export for the session. The disk may have to keep who its
// writer is, and tells its size.
func (k *controller) open(msg []byte) error {
	var q wire.OpenRequest
	if err := q.Decode(msg); err != nil {
		return err
	}
	var a wire.OpenResponse
	var why string
	session := k.login.session
	return k.calls.begin(
		func() { a, why = k.server.tryOpen(session, &q) },
		func() error { return k.answerOpen(&q, &a, why) },
	)
}

// answerOpen answers an open.
func (k *controller) answerOpen(q *wire.OpenRequest, a *wire.OpenResponse, why string) error {
	a.ID, a.PathEpoch = q.ID, k.login.epoch
	if a.Status == wire.StatusOK {
		k.conn.markOpened()
		k.conn.logCaused(k.log, slog.LevelInfo, "export opened", "event", "export_opened", "export", a.Name)
	} else {
		k.conn.logCaused(k.log, slog.LevelWarn, "export not opened", "event", "export_refused", "export", clip(q.Name), "identity", k.login.identity, "reason", cmp.Or(why, a.Reason))
	}
	return k.send(a)
}

// tryOpen opens an export for a session, unless that of the initiator's device
// was ended by the administrator before. It may block.
func (s *Server) tryOpen(x *session, q *wire.OpenRequest) (a wire.OpenResponse, why string) {
	if s.ended.has(q.Writer) {
		return wire.OpenResponse{Status: wire.StatusPermission, Reason: endedReason}, ""
	}
	a, why = x.open(s.exports, q)
	if a.Status == wire.StatusNotFound && s.removed.has(q.Writer) {
		a.Reason = removedReason
	}
	return a, why
}

// discover sends a page of the list of exports that the client may open.
func (k *controller) discover(msg []byte) error {
	var q wire.DiscoverRequest
	if err := q.Decode(msg); err != nil {
		return err
	}
	exports := k.server.exports.current.Load()
	a := wire.DiscoverResponse{ID: q.ID, PathEpoch: k.login.epoch, Generation: exports.generation}
	list := exports.visible(k.login.identity)
	if int(q.Cursor) > len(list) {
		a.Status = wire.StatusInvalid
		return k.send(&a)
	}
	i := k.login.identity
	return k.calls.begin(
		func() { a.Entries = exports.entries(list[q.Cursor:], i) },
		func() error {
			if err := a.Paginate(q.Cursor, int(q.MaxMessage)); err != nil {
				return err
			}
			return k.send(&a)
		},
	)
}

// entries describes exports to a client. It asks their disks, which may block.
func (l *exportList) entries(exports []*exported, i access.Identity) (all []wire.ExportEntry) {
	for _, x := range exports {
		info := x.info()
		if access.Admits(i, x.Rights, access.ReadWrite) == access.MayRead {
			info.Features |= block.ReadOnly
		}
		all = append(all, wire.ExportEntry{
			Kind: wire.EntryExport, Default: l.isDefault(x), UUID: x.identity.UUID(), Size: uint64(info.Size),
			Features: uint32(info.Features), Name: x.Name, Description: x.Description,
		})
	}
	return all
}

// logout closes the connection when the answer is sent. On a control connection
// it ends the session, and is answered when the session holds nothing here, so
// that the initiator may open the same exports again at once. On an I/O
// connection the worker aborts, and it is answered when no command is left.
func (k *controller) logout(msg []byte) error {
	var q wire.Logout
	if err := q.Decode(msg); err != nil {
		return err
	}
	k.loggingOut, k.logoutID = true, q.ID
	if k.login.role == wire.RoleControl {
		k.server.setReason(k.login.session, "logged out")
		k.login.session.end()
		k.login.session.stopControls(k.signals)
	}
	k.signals.recheck.Store(true)
	return nil
}

// leaving reports whether the initiator has logged out, or was refused.
func (k *controller) leaving() bool { return k.closing || k.loggingOut }

// answerLogout answers the logout of an I/O connection without commands, or of
// a session that has no I/O connection any more. In a drain it flushes the
// disks before.
func (k *controller) answerLogout() error {
	session := k.login.session
	switch {
	case !k.loggingOut || k.closing:
		return nil
	case k.login.role != wire.RoleControl:
		return k.loggedOut(false)
	case k.calls.busy() || !session.alone():
		return nil
	}
	// An initiator one of whose commands was refused may log out before it was
	// told.
	if err := k.announce(); err != nil {
		return err
	}
	if !k.server.isDraining() && k.signals.halt.Load() != stopDrain {
		return k.finishSession(false)
	}
	durable := false
	return k.calls.begin(
		func() { durable = session.flush(k.server.cfg.Scheduler) },
		func() error { return k.finishSession(durable) },
	)
}

// finishSession releases the exports of a session that logged out, and answers.
func (k *controller) finishSession(durable bool) error {
	k.server.sessions.finish(k.login.session, k.server.exports)
	return k.loggedOut(durable)
}

// loggedOut answers a logout.
func (k *controller) loggedOut(durable bool) error {
	k.closing = true
	if err := k.send(&wire.LogoutResponse{ID: k.logoutID, PathEpoch: k.login.epoch, Durable: durable}); err != nil {
		return err
	}
	k.carrier.Doorbell()
	return nil
}

// refuseLogin refuses the login; the connection ends when the answer is sent.
func (k *controller) refuseLogin(q *wire.LoginRequest, status wire.Status, reason wire.LoginReason, text string) error {
	k.closing = true
	k.server.refusals.Warn(k.log, "login refused", "event", "login_refused", "reason", reason, "text", text)
	return k.send(&wire.LoginResponse{
		ID: q.ID, PathEpoch: q.PathEpoch, Status: status, Reason: reason, Text: text,
		Version: wire.Version, TargetID: k.server.id, TargetInstance: k.server.id,
	})
}
