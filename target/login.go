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
	c.features = answer.Features
	if c.role == wire.RoleIO {
		if err := c.equip(&answer); err != nil {
			c.log.Error("connection not equipped", "error", err)
			c.refuseLogin(&q, wire.StatusNoMemory, wire.ReasonResources, "the target has no memory for the connection")
			return nil
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
		c.session, reason, text = c.server.sessions.join(c, q, c.server.sessionConns())
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
	c.server.refusals.Warn(c.log, "login refused", "reason", reason, "text", text)
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
	carries := c.carrier.VI().Attributes().MaxTransferSize
	a := wire.LoginResponse{
		ID: q.ID, PathEpoch: q.PathEpoch, Version: wire.Version,
		TargetID: c.server.id, TargetInstance: c.server.id,
		InlineMax:       min(choose(q.InlineMax, uint32(cfg.InlineMax)), carries-wire.MaxHeader),
		MaxIO:           min(choose(q.MaxIO, uint32(cfg.MaxIO)), carries),
		HeartbeatMillis: uint32(cfg.Heartbeat / time.Millisecond),
		DataModes:       modes, Features: q.Features & (wire.FeatureImmediate | wire.FeatureEvents),
		Conns: c.server.sessionConns(),
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

// sessionConns returns how many I/O connections a session may have: each has
// slots of its own.
func (s *Server) sessionConns() uint16 {
	return uint16(min(maxSessionConns, (1<<16)/s.cfg.Depth-1))
}

// equip gives an I/O connection its memory: receives for every credit, sends,
// slots and the pool. Nothing is registered after it.
func (c *conn) equip(a *wire.LoginResponse) error {
	n := int(a.Credits)
	c.inline, c.maxIO, c.base = a.InlineMax, a.MaxIO, a.SlotBase
	c.modes, c.features = a.DataModes, a.Features
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
