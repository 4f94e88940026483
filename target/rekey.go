package target

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
)

// A rekey is a handshake inside a sealed control connection, which gives the
// session other keys and verifies both certificates again. The initiator begins
// it, when it wants to or when the target asks it to. Every connection of the
// session then goes on with the new keys when its initiator does, see package
// seal, and nothing waits for that.

// eraTimeout is how long the keys from before a rekey are of use. The initiator
// has had the last answer, and what was sealed before has arrived.
const (
	eraTimeout = loginTimeout
	eraPolls   = 2 // at a connection, before its keys retire
)

var (
	errRekeySilent = errors.New("the initiator was silent amid a rekey")
	errDismissed   = errors.New("the initiator does not leave though its certificate is not valid any more")
	errNoSession   = errors.New("rekey of a session that has ended")
)

// rekeyer is the state of rekeys; what an I/O connection has of it is polls.
type rekeyer struct {
	handshake *handshake.Target // in flight; else nil
	began     time.Time
	asked     bool      // the initiator has not acknowledged the event
	retires   bool      // the keys from before, of the session
	polls     int       // at a connection that is behind, when its keys are to retire
	leaveBy   time.Time // the session ends with a go-away; zero: not
}

// authentication is what the two ends of a session have authenticated each
// other with. A rekey replaces it.
type authentication struct {
	*handshake.Result
	at time.Time
}

// rekeyMessage handles a message of a rekey.
func (w *worker) rekeyMessage(msg []byte) error {
	var m wire.Auth
	if err := m.Decode(msg); err != nil {
		return err
	}
	k := &w.rekey
	now := w.sleeper.scheduler.Now()
	if k.handshake == nil {
		w.refreshAuthenticated()
		h, err := w.conn.server.guard.NewTarget(w.conn.origin, w.authenticated)
		if err != nil {
			return err
		}
		k.handshake, k.began = h, now
		w.tendRekey(now)
	}
	h := k.handshake
	answer, done, refusal := h.Step(&m)
	if done {
		if err := w.replaceKeys(h.Result(), now); err != nil {
			return err
		}
	}
	if done || refusal != nil {
		k.handshake = nil
	}
	if answer == nil {
		return refusal
	}
	if err := w.control.send(answer); err != nil {
		return err
	}
	if busy := new(handshake.BusyError); refusal != nil && !errors.As(refusal, &busy) {
		name, serial := h.Claimed()
		w.conn.logCaused(w.log, slog.LevelWarn, "session ended: rekey refused", "event", "rekey_refused", "name", name, "serial", serial, "error", refusal)
		w.dismiss(now)
	}
	return nil
}

// replaceKeys gives the session the keys of a rekey. Connections know them
// before the initiator does.
func (w *worker) replaceKeys(r *handshake.Result, now time.Time) error {
	s := w.login.session
	if !w.conn.server.sessions.replaceKeys(s, &authentication{r, now}) {
		r.Session.Clear()
		return errNoSession
	}
	w.authenticated = r
	w.log.Debug("keys replaced", "event", "keys_replaced", "names", strings.Join(r.Names, " "), "serial", r.Serial)
	w.rekey.retires = true
	s.recheckConns()
	return nil
}

// replaceKeys gives a session other keys; connections may join by the present
// ones until retireKeys. It returns false if the session has ended.
func (t *sessionTable) replaceKeys(s *session, a *authentication) bool {
	defer contain.Shared()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[s.id] != s {
		return false
	}
	before := s.authenticated.Load().Session
	delete(t.byKeys, s.oldKeys)
	s.oldKeys = before.Name()
	before.Rekey(a.Session)
	t.byKeys[a.Session.Name()] = s
	s.authenticated.Store(a)
	return true
}

// retireKeys forgets the keys from before the last rekey.
func (t *sessionTable) retireKeys(s *session) {
	defer contain.Shared()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byKeys, s.oldKeys)
	s.oldKeys = [16]byte{}
	s.authenticated.Load().Session.Retire()
}

// recheckConns has the connections check the session.
func (s *session) recheckConns() {
	defer contain.Shared()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.recheckSession()
	}
	s.controls((*signals).recheckSession)
}

// tendRekey does what is due of a rekey, and has checkPeer run when more is.
func (w *worker) tendRekey(now time.Time) {
	k := &w.rekey
	if !k.leaveBy.IsZero() {
		w.tendAt(now, k.leaveBy, func() { w.fail(errDismissed) })
	}
	if w.login.session == nil || !w.carrier.Sealed() {
		return
	}
	if k.handshake != nil {
		w.tendAt(now, k.began.Add(loginTimeout), func() { w.fail(errRekeySilent) })
	}
	behind := w.carrier.Opener().Behind()
	if !behind {
		k.polls = 0
	}
	if k.retires || behind && k.polls < eraPolls {
		at := w.login.session.authenticated.Load().at
		w.tendAt(now, at.Add(eraTimeout), func() { w.retireKeys(now, behind) })
	}
}

// tendAt calls f when a time has come, or has checkPeer run then.
func (w *worker) tendAt(now, at time.Time, f func()) {
	if now.Before(at) {
		w.watch.within(now, at.Sub(now))
	} else {
		f()
	}
}

// retireKeys has the session, and a connection that is behind, accept the keys
// of the last rekey only. By the last poll of a connection it has opened all
// that had arrived by the first one, so that it refuses nothing that an
// initiator sealed in time.
func (w *worker) retireKeys(now time.Time, behind bool) {
	k := &w.rekey
	if k.retires {
		k.retires = false
		w.conn.server.sessions.retireKeys(w.login.session)
	}
	if !behind {
		return
	}
	if k.polls++; k.polls == eraPolls {
		w.carrier.Opener().Retire()
		return
	}
	w.watch.within(now, w.conn.server.cfg.KeepAlive)
}

// askRekey asks the initiator for a rekey, if it knows how.
func (w *worker) askRekey() error {
	k := &w.control
	if k.login.features&wire.FeatureRekey == 0 || k.leaving() || w.rekey.asked {
		return nil
	}
	w.rekey.asked = true
	return k.sendEvent(wire.Event{Kind: wire.EventRekey})
}

// sendEvent numbers an event and sends it.
func (k *controller) sendEvent(v wire.Event) error {
	k.events++
	v.ID, v.PathEpoch = k.events, k.login.epoch
	if err := k.send(&v); err != nil {
		return fmt.Errorf("send event: %w", err)
	}
	k.carrier.Doorbell()
	return nil
}

// dismiss ends the session of a control connection because the initiator proves
// no more who it is, or because the administrator ends it. It tells it to go,
// and waits a moment for the message to leave.
func (w *worker) dismiss(now time.Time) {
	if !w.rekey.leaveBy.IsZero() {
		return
	}
	w.login.session.end()
	w.rekey.leaveBy = now.Add(logoutGrace)
	w.tendRekey(now)
	if w.control.login.features&wire.FeatureEvents != 0 && !w.control.leaving() {
		if err := w.control.sendEvent(wire.Event{Kind: wire.EventGoAway}); err != nil {
			w.fail(err)
		}
	}
	w.control.closing = true
}

// handleSignals does what other goroutines want of a control connection.
func (w *worker) handleSignals() {
	signals := &w.conn.signals
	if w.login.role != wire.RoleControl {
		return
	}
	if signals.rekey.Swap(false) {
		if err := w.askRekey(); err != nil {
			w.fail(err)
		}
	}
	if err := w.control.watchExports(); err != nil {
		w.fail(err)
	}
	if signals.dismissed.Load() {
		w.dismiss(w.sleeper.scheduler.Now())
	}
}

// Rekey asks the initiators for a rekey. The caller has renewed the
// certificates of the target.
func (s *Server) Rekey() {
	for _, x := range s.sealedHere() {
		x.controls((*signals).askRekey)
	}
}
