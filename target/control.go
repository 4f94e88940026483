package target

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// What a control message may be wrong in, so that the connection goes.
var (
	errNoLogin    = errors.New("the first message is no login")
	errLoginAgain = errors.New("the connection is logged in")
	errNoRequest  = errors.New("not a request")
	errRole       = errors.New("not on a connection of this role")
)

// control handles a control message: rare, so it may allocate.
func (c *conn) control(msg []byte) {
	h, err := wire.PeekControl(msg)
	unknown := errors.Is(err, wire.ErrUnknownOpcode)
	switch {
	case err != nil && !unknown:
	case c.role == 0 && h.Opcode != wire.OpLogin:
		err = errNoLogin
	case c.role != 0 && h.Opcode == wire.OpLogin:
		err = errLoginAgain
	case c.role != 0 && h.PathEpoch != c.epoch:
		err = errEpoch
	case !isRequest(h.Opcode):
		err = errNoRequest
	case unknown:
		err = c.notSupported(h)
	}
	if err != nil {
		c.fail(fmt.Errorf("%v: %w", h.Opcode, err))
		return
	}
	if unknown {
		return
	}
	if err := c.dispatch(h.Opcode, msg); err != nil {
		c.fail(fmt.Errorf("%v: %w", h.Opcode, err))
	}
}

// isRequest reports whether an opcode is in the range of requests, known or not.
func isRequest(op wire.Opcode) bool { return op >= wire.OpAbort && op < wire.OpReply }

// notSupported answers a request that this target does not serve.
func (c *conn) notSupported(h wire.ControlHeader) error {
	return c.send(&wire.Refused{ID: h.ID, PathEpoch: c.epoch, Status: wire.StatusNotSupported, Request: h.Opcode})
}

// dispatch decodes and serves a control message of the connection's role.
func (c *conn) dispatch(op wire.Opcode, msg []byte) error {
	switch {
	case op == wire.OpLogin:
		return c.login(msg)
	case op == wire.OpHeartbeat:
		var q wire.Heartbeat
		if err := q.Decode(msg); err != nil {
			return err
		}
		return c.send(&wire.Heartbeat{ID: q.ID, PathEpoch: c.epoch, Ack: true})
	case op == wire.OpDiscover && (c.role == wire.RoleDiscover || c.role == wire.RoleControl):
		return c.discover(msg)
	case op == wire.OpLogout:
		return c.logout(msg)
	case c.role != wire.RoleControl:
		return errRole
	case op == wire.OpOpen:
		return c.open(msg)
	case op == wire.OpClose:
		var q wire.CloseRequest
		if err := q.Decode(msg); err != nil {
			return err
		}
		return c.send(&wire.CloseResponse{ID: q.ID, PathEpoch: c.epoch, Status: c.session.close(c.server.exports, &q)})
	case op == wire.OpEventAck:
		return c.acknowledged(msg)
	default:
		h, err := wire.PeekControl(msg)
		return errors.Join(err, c.notSupported(h))
	}
}

// send sends a control message.
func (c *conn) send(m wire.Message) error {
	s := c.carrier.TakeLargeSend(wire.MaxControlSize)
	if s == nil {
		return errors.New("more control requests at once than a connection may have")
	}
	n, err := m.Encode(s.Head)
	if err != nil {
		return err
	}
	s.Step = stepControl
	return c.carrier.StageMessage(s, n, carrier.Span{})
}

// open opens an export for the session.
func (c *conn) open(msg []byte) error {
	var q wire.OpenRequest
	if err := q.Decode(msg); err != nil {
		return err
	}
	a := c.session.open(c.server.exports, &q)
	a.ID, a.PathEpoch = q.ID, c.epoch
	if a.Status == wire.StatusOK {
		c.log.Info("export opened", "export", a.Name)
	} else {
		c.log.Warn("export not opened", "reason", a.Reason)
	}
	return c.send(&a)
}

// discover sends a page of the list of exports.
func (c *conn) discover(msg []byte) error {
	var q wire.DiscoverRequest
	if err := q.Decode(msg); err != nil {
		return err
	}
	a := wire.DiscoverResponse{ID: q.ID, PathEpoch: c.epoch, Generation: 1}
	list := c.server.exports.list
	if int(q.Cursor) > len(list) {
		a.Status = wire.StatusInvalid
		return c.send(&a)
	}
	for _, x := range list[q.Cursor:] {
		info := x.info()
		a.Entries = append(a.Entries, wire.ExportEntry{
			Kind: wire.EntryExport, Default: x.Default, UUID: x.uuid, Size: uint64(info.Size),
			Features: uint32(info.Features), Name: x.Name, Description: x.Description,
		})
	}
	if err := a.Paginate(q.Cursor, int(q.MaxMessage)); err != nil {
		return err
	}
	return c.send(&a)
}

// logout ends the connection in order, when the answer is out. That of a control
// connection ends the session, and is answered when nothing of the session is
// left here: whoever got the answer may open the same exports again at once.
func (c *conn) logout(msg []byte) error {
	var q wire.Logout
	if err := q.Decode(msg); err != nil {
		return err
	}
	if c.role != wire.RoleControl {
		c.leaving = true
		return c.send(&wire.LogoutResponse{ID: q.ID, PathEpoch: c.epoch})
	}
	c.parting, c.partID = true, q.ID
	c.session.end()
	c.look.Store(true)
	return nil
}

// depart answers the logout of a session.
func (c *conn) depart() {
	c.server.sessions.finish(c.session, c.server.exports)
	c.leaving = true
	c.staged(c.send(&wire.LogoutResponse{ID: c.partID, PathEpoch: c.epoch}))
	c.carrier.Doorbell()
}
