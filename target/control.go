package target

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

var errNoLogin = errors.New("the first message is no login")

// control handles a control message: rare, so it may allocate.
func (c *conn) control(msg []byte) {
	h, err := wire.PeekControl(msg)
	if errors.Is(err, wire.ErrUnknownOpcode) && c.role != 0 {
		c.send(&wire.Refused{ID: h.ID, PathEpoch: c.epoch, Status: wire.StatusNotSupported, Request: h.Opcode})
		return
	}
	if err != nil {
		c.fail(err)
		return
	}
	if (c.role == 0) != (h.Opcode == wire.OpLogin) {
		c.fail(errNoLogin)
		return
	}
	if c.role != 0 && h.PathEpoch != c.epoch {
		c.fail(errEpoch)
		return
	}
	if err := c.dispatch(h.Opcode, msg); err != nil {
		c.fail(fmt.Errorf("%v: %w", h.Opcode, err))
	}
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
		return errors.New("not on a connection of this role")
	case op == wire.OpOpen:
		return c.open(msg)
	case op == wire.OpClose:
		var q wire.CloseRequest
		if err := q.Decode(msg); err != nil {
			return err
		}
		return c.send(&wire.CloseResponse{ID: q.ID, PathEpoch: c.epoch, Status: c.session.close(c.server.exports, &q)})
	case op == wire.OpEventAck:
		return nil
	default:
		h, _ := wire.PeekControl(msg)
		return c.send(&wire.Refused{ID: h.ID, PathEpoch: c.epoch, Status: wire.StatusNotSupported, Request: op})
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

// login opens the connection for a role, or refuses it.
func (c *conn) login(msg []byte) error {
	var q wire.LoginRequest
	if err := q.Decode(msg); err != nil {
		if errors.Is(err, wire.ErrVersion) {
			c.refuseLogin(&q, wire.StatusVersion, wire.ReasonVersion,
				fmt.Sprintf("this target speaks version %d", wire.Version))
			return nil
		}
		return err
	}
	if c.halt.Load() != 0 {
		c.refuseLogin(&q, wire.StatusRetry, wire.ReasonDraining, "the target is going down")
		return nil
	}
	reason, text := c.assume(&q)
	if reason != wire.ReasonNone {
		c.refuseLogin(&q, wire.StatusStale, reason, text)
		return nil
	}
	answer := c.negotiate(&q)
	if c.role == wire.RoleIO {
		if err := c.equip(&answer); err != nil {
			return err
		}
	}
	c.nextBeat = time.Now().Add(c.server.cfg.Heartbeat)
	c.log = c.log.With("session", fmt.Sprintf("%x", q.SessionID[:4]), "conn", q.Conn)
	c.log.Info("logged in", "role", q.Role)
	return c.send(&answer)
}

// assume takes on the role that the login asks for.
func (c *conn) assume(q *wire.LoginRequest) (wire.LoginReason, string) {
	reason, text := wire.ReasonNone, ""
	switch q.Role {
	case wire.RoleDiscover:
	case wire.RoleControl:
		c.session, reason, text = c.server.sessions.begin(c, q)
	case wire.RoleIO:
		c.session, reason, text = c.server.sessions.join(c, q)
	default:
		reason, text = wire.ReasonRole, "connections of that role are not served"
	}
	if reason == wire.ReasonNone {
		c.role, c.index, c.epoch = q.Role, q.Conn, q.PathEpoch
	}
	return reason, text
}

// refuseLogin answers no; the connection ends when the answer is out.
func (c *conn) refuseLogin(q *wire.LoginRequest, status wire.Status, reason wire.LoginReason, text string) {
	c.leaving = true
	c.log.Warn("login refused", "reason", reason, "text", text)
	c.staged(c.send(&wire.LoginResponse{
		ID: q.ID, PathEpoch: q.PathEpoch, Status: status, Reason: reason, Text: text,
		Version: wire.Version, TargetID: c.server.id, TargetInstance: c.server.id,
	}))
}

// negotiate chooses from what the initiator offers.
func (c *conn) negotiate(q *wire.LoginRequest) wire.LoginResponse {
	cfg := &c.server.cfg
	choose := func(wanted, most uint32) uint32 {
		if wanted == 0 || wanted > most {
			return most
		}
		return wanted
	}
	modes := q.DataModes & (wire.ModesInline | wire.ModesWindow)
	if cfg.NIC.Limits().RdmaReadLevels&c.carrier.VI().Attributes().Reliability != 0 {
		modes |= q.DataModes & wire.ModesPull
	}
	a := wire.LoginResponse{
		ID: q.ID, PathEpoch: q.PathEpoch, Version: wire.Version,
		TargetID: c.server.id, TargetInstance: c.server.id,
		InlineMax: choose(q.InlineMax, uint32(cfg.InlineMax)), MaxIO: choose(q.MaxIO, uint32(cfg.MaxIO)),
		HeartbeatMillis: uint32(cfg.Heartbeat / time.Millisecond),
		DataModes:       modes, Features: q.Features & wire.FeatureImmediate,
		Conns: uint16(min(maxSessionConns, (1<<16)/cfg.Depth-1)),
	}
	if q.Role == wire.RoleIO {
		a.Credits = uint16(choose(uint32(q.Depth), uint32(cfg.Depth)))
		a.SlotCount = a.Credits
		a.SlotBase = (q.Conn - 1) * uint16(cfg.Depth)
	}
	return a
}

// maxSessionConns bounds the I/O connections of a session.
const maxSessionConns = 256

// equip gives an I/O connection its memory: receives for every credit, sends,
// slots and the pool. Nothing is registered after it.
func (c *conn) equip(a *wire.LoginResponse) error {
	n := int(a.Credits)
	c.inline, c.maxIO, c.features, c.base = a.InlineMax, a.MaxIO, a.Features, a.SlotBase
	if int(c.index) > int(a.Conns) {
		return fmt.Errorf("connection %d of %d", c.index, a.Conns)
	}
	data := max(int(a.InlineMax), wire.MaxHeader-carrier.HeadSize)
	if err := c.carrier.AddReceives(n+reserveReceives, data); err != nil {
		return err
	}
	if err := c.carrier.AddSends(n+wire.MaxSegments, wire.HeaderSize); err != nil {
		return err
	}
	pool, err := regcache.NewPool(c.server.cfg.NIC, c.server.cfg.PoolBytes, via.MemAttributes{Ptag: c.carrier.Tag()})
	if err != nil {
		return err
	}
	c.pool = pool
	c.requests = make([]request, n)
	for i := range c.requests {
		c.requests[i].slot = c.base + uint16(i)
	}
	c.awaitMemory, c.awaitSends = newFifo(n), newFifo(n)
	return nil
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
		a.Entries = append(a.Entries, wire.ExportEntry{
			Kind: wire.EntryExport, Default: x.Default, UUID: x.uuid, Size: uint64(x.info.Size),
			Features: uint32(x.info.Features), Name: x.Name, Description: x.Description,
		})
	}
	if err := a.Paginate(q.Cursor, int(q.MaxMessage)); err != nil {
		return err
	}
	return c.send(&a)
}

// logout ends the connection in order, when the answer is out.
func (c *conn) logout(msg []byte) error {
	var q wire.Logout
	if err := q.Decode(msg); err != nil {
		return err
	}
	c.leaving = true
	return c.send(&wire.LogoutResponse{ID: q.ID, PathEpoch: c.epoch})
}
