package target

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// login is what a connection logged in as, and what was negotiated. It does not
// change after the login, so each owner in the worker has a copy.
type login struct {
	identity access.Identity // of the initiator, before the login too; see worker.identify
	session  *session        // nil of a connection for discovery
	role     wire.Role       // 0 before the login
	index    uint16          // of an I/O connection in its session
	path     uint16          // of its session
	epoch    uint32          // of the path
	features wire.Features

	// Of an I/O connection.
	base   uint16 // first slot
	inline uint32 // bytes of payload inside a message
	maxIO  uint32 // bytes of one command
	modes  wire.DataModes
	digest bool // commands and replies with payload have its digest
}

// logIn opens the connection for a role, or refuses it.
func (w *worker) logIn(msg []byte) error {
	var q wire.LoginRequest
	if err := q.Decode(msg); err != nil {
		if errors.Is(err, wire.ErrVersion) {
			return w.control.refuseLogin(&q, wire.StatusVersion, wire.ReasonVersion,
				fmt.Sprintf("this target speaks version %d of the protocol and the initiator %d to %d: upgrade the older one",
					wire.Version, q.MinVersion, q.MaxVersion))
		}
		return err
	}
	if w.conn.signals.halt.Load() != 0 {
		return w.control.refuseLogin(&q, wire.StatusRetry, wire.ReasonDraining, "the target is going down")
	}
	if err := w.checkAuthenticated(&q); err != nil {
		return err
	}
	if w.lacksDigest(&q) {
		return w.control.refuseLogin(&q, wire.StatusPermission, wire.ReasonDigest, digestRequired)
	}
	session, reason, text := w.joinSession(&q)
	if reason != wire.ReasonNone {
		return w.control.refuseLogin(&q, wire.StatusStale, reason, text)
	}
	w.login.session, w.login.role, w.login.index, w.login.path = session, q.Role, q.Conn, q.PathID // for release, from now on
	if session != nil {
		w.conn.server.joinSession(w.conn, session)
		if q.Role == wire.RoleControl && session.uses() {
			w.conn.markOpened() // by its session, over another path
		}
	}
	answer := w.negotiate(&q)
	w.setLogin(&login{
		identity: w.login.identity, session: session, role: q.Role, index: q.Conn, path: q.PathID, epoch: q.PathEpoch, features: answer.Features,
		base: answer.SlotBase, inline: answer.InlineMax, maxIO: answer.MaxIO, modes: answer.DataModes, digest: answer.Digest != wire.DigestNone,
	})
	if q.Role == wire.RoleIO {
		if err := w.equip(int(answer.Credits)); err != nil {
			w.conn.logCaused(w.log, slog.LevelError, "connection not equipped", "event", "out_of_memory", "error", err)
			return w.control.refuseLogin(&q, wire.StatusNoMemory, wire.ReasonResources, "the target has no memory for the connection")
		}
	}
	log := w.log.With("session", fmt.Sprintf("%x", q.SessionID[:4]), "conn", q.Conn)
	w.log, w.control.log, w.exports.log, w.execute.log = log, log, log, log
	level := slog.LevelInfo
	if q.Role == wire.RoleDiscover { // "viablk list" and "info", as often as a monitor asks
		level = slog.LevelDebug
	}
	w.conn.logCaused(w.log, level, "logged in", "event", "logged_in", "role", q.Role)
	w.control.news.told = w.conn.server.exports.current.Load()
	return w.control.send(&answer)
}

// identify sets who the initiator is, before the login: what the kernel or a
// certificate proves. It returns why the client may have no connection more.
func (w *worker) identify(i access.Identity) (refusal string) {
	w.login.identity = i
	return w.conn.countAs(i)
}

// identifyLocal sets who the initiator is if it is a process of this host: one
// of another user than root and the target's is a guest.
func (w *worker) identifyLocal(r *via.ConnRequest) error {
	uid, ok := r.PeerUID()
	if !ok {
		return nil
	}
	i := access.Local(uid)
	if w.conn.origin != "" {
		i = i.Guest()
	}
	if refusal := w.identify(i); refusal != "" {
		return errors.New(refusal)
	}
	return nil
}

// setLogin gives the login to the owners. The initiator has to be heard once in
// a keepalive interval from now on.
func (w *worker) setLogin(l *login) {
	now := w.sleeper.scheduler.Now()
	w.watch.base, w.watch.next, w.watch.loggedIn = w.conn.server.began, now.Add(w.conn.server.cfg.KeepAlive), now
	w.login, w.control.login, w.exports.login, w.receive.login, w.send.login = *l, *l, *l, *l, *l
}

// joinSession begins a session or joins one, or returns why not.
func (w *worker) joinSession(q *wire.LoginRequest) (*session, wire.LoginReason, string) {
	server, signals := w.conn.server, &w.conn.signals
	signals.path = q.PathID
	switch {
	case q.Role == wire.RoleDiscover:
		return nil, wire.ReasonNone, ""
	case q.Role == wire.RoleControl && q.PathEpoch > firstEpoch:
		return server.sessions.joinPath(w.joining(), q)
	case q.Role == wire.RoleControl:
		var a *authentication
		if w.authenticated != nil {
			a = &authentication{w.authenticated, w.sleeper.scheduler.Now()}
		}
		from := client{identity: w.login.identity, name: w.login.identity.String(), peer: w.conn.peer, server: server, since: w.sleeper.scheduler.Now()}
		return server.sessions.begin(signals, from, q, a)
	case q.Role == wire.RoleIO:
		return server.sessions.join(w.joining(), q, server.sessionConns())
	default:
		return nil, wire.ReasonRole, "connections of that role are not served"
	}
}

// negotiate chooses from what the initiator offers.
func (w *worker) negotiate(q *wire.LoginRequest) wire.LoginResponse {
	server := w.conn.server
	cfg := &server.cfg
	choose := func(wanted, most uint32) uint32 {
		if wanted == 0 || wanted > most {
			return most
		}
		return wanted
	}
	modes := q.DataModes & (wire.ModesInline | wire.ModesPlace)
	if cfg.NIC.Limits().RdmaReadLevels&w.carrier.VI().Attributes().Reliability != 0 {
		modes |= q.DataModes & wire.ModesPull
	}
	features, maxIO := wire.FeatureImmediate|wire.FeatureEvents, uint32(cfg.MaxIO)
	carries := w.carrier.VI().Attributes().MaxTransferSize
	digest := w.digest(q)
	if digest != wire.DigestNone {
		features &^= wire.FeatureImmediate // which has no checksum
	}
	if w.carrier.Sealed() {
		features = wire.FeatureEvents | wire.FeatureRekey // an immediate has no tag
		maxIO = min(maxIO, seal.MaxPayload)
		carries -= seal.Overhead
	}
	a := wire.LoginResponse{
		ID: q.ID, PathEpoch: q.PathEpoch, Version: wire.Version,
		TargetID: server.id, TargetInstance: server.id,
		InlineMax:       min(choose(q.InlineMax, uint32(cfg.InlineMax)), carries-wire.MaxHeader),
		MaxIO:           min(choose(q.MaxIO, maxIO), carries),
		KeepAliveMillis: uint32(cfg.KeepAlive / time.Millisecond),
		DataModes:       modes, Digest: digest, Features: q.Features & features,
		Conns: server.sessionConns(),
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

// equip allocates the memory of an I/O connection: receives for every credit,
// sends, slots and the pool. The data path registers nothing.
func (w *worker) equip(credits int) error {
	cfg, l := &w.conn.server.cfg, &w.login
	data, head := max(int(l.inline), wire.MaxHeader-carrier.HeadSize), wire.HeaderSize
	if w.carrier.Sealed() {
		tags := seal.TagsSize(l.maxIO)
		data, head = max(data, wire.MaxHeader-carrier.HeadSize+tags), head+max(int(l.inline), tags)
	}
	if err := w.carrier.AddReceives(credits+reserveReceives, data); err != nil {
		return err
	}
	if err := w.carrier.AddSends(credits+wire.MaxSegments, head); err != nil {
		return err
	}
	pool, err := regcache.NewPool(cfg.NIC, cfg.PoolBytes, via.MemAttributes{Ptag: w.carrier.Tag()})
	if err != nil {
		return err
	}
	w.execute.equip(pool, credits, l)
	w.receive.requests = make([]request, credits)
	for i := range w.receive.requests {
		r := &w.receive.requests[i]
		r.index, r.slot = uint16(i), l.base+uint16(i)
	}
	if w.carrier.Sealed() {
		p := newProtections(credits, l.maxIO)
		for i := range w.receive.requests {
			r := &w.receive.requests[i]
			r.protection, r.nextProtection = &p[2*i], &p[2*i+1]
		}
	}
	w.send.awaitSends = ring.New[*request](credits)
	w.exports.slots = credits
	return nil
}
