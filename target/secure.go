package target

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// With Config.Security, every connection authenticates before its login, by a
// handshake or by joining the keys of a session, and is sealed from then on.
// The worker's goroutine computes that; the timeout of the login bounds it, and
// the guard how many handshakes are in flight.

// Refusals of connections that do not authenticate.
var (
	errNoAuth   = errors.New("the first message is no authentication")
	errJoinRole = errors.New("the login is for another connection than was authenticated")
	errExpired  = errors.New("the certificate of the initiator has expired")
)

const authRequired = "this target wants the certificate of a client"

// newGuard returns the guard of a server, or nil without security.
func (s *Server) newGuard() *handshake.Guard {
	c := s.cfg.Security
	if c == nil {
		return nil
	}
	return &handshake.Guard{TLS: c.TLS, Limits: c.Limits, Session: s.sessions.keys}
}

// authenticate handles a message of a connection that is not authenticated. The
// last answer is the last message in clear.
func (w *worker) authenticate(msg []byte) error {
	var q wire.LoginRequest
	switch wire.RawOpcode(msg) {
	case wire.OpAuth:
	case wire.OpLogin:
		if err := q.Decode(msg); err != nil && !errors.Is(err, wire.ErrVersion) {
			return err
		}
		return w.control.refuseLogin(&q, wire.StatusAuth, wire.ReasonAuthRequired, authRequired)
	default:
		return errNoAuth
	}
	var m wire.Auth
	if err := m.Decode(msg); err != nil {
		return err
	}
	if w.handshake == nil {
		h, err := w.conn.server.guard.NewTarget(w.conn.origin, nil)
		if err != nil {
			return err
		}
		w.handshake = h
	}
	answer, done, refusal := w.handshake.Step(&m)
	if answer == nil {
		return refusal
	}
	if err := w.control.send(answer); err != nil {
		return err
	}
	switch {
	case refusal != nil:
		name, serial := w.handshake.Claimed()
		w.conn.server.refusals.Warn(w.log, "authentication refused", "event", "authentication_refused", "name", name, "serial", serial, "error", refusal)
		w.control.closing = true
	case done:
		w.authenticated = w.handshake.Result()
		if err := w.identifyAuthenticated(); err != nil {
			return err
		}
		sealer, opener, err := w.authenticated.Keys(seal.Target)
		if err != nil {
			return err
		}
		w.carrier.Seal(sealer, opener)
	}
	return nil
}

// identifyAuthenticated sets who the initiator is: by its certificate, or on a
// joined connection as its session knows it.
func (w *worker) identifyAuthenticated() error {
	r := w.authenticated
	var i access.Identity
	if len(r.Certificates) > 0 {
		i = w.login.identity.WithCertificate(r.Certificates[0])
	} else {
		i = w.conn.server.sessions.identityOf(r.Session.Name())
	}
	if refusal := w.identify(i); refusal != "" {
		return errors.New(refusal)
	}
	return nil
}

// forgetKeys clears the keys of a connection that has no session: one that
// discovered, or did not log in. A joined one does not own its keys.
func (w *worker) forgetKeys(r *handshake.Result) {
	if len(r.Certificates) > 0 {
		r.Session.Clear()
	}
}

// checkAuthenticated checks that a login is for what its connection
// authenticated as: a joined one is for I/O, or for a further path, any other
// is neither.
func (w *worker) checkAuthenticated(q *wire.LoginRequest) error {
	r := w.authenticated
	if r == nil {
		return nil
	}
	joined := r.Certificates == nil
	joins := q.Role == wire.RoleIO || q.Role == wire.RoleControl && q.PathEpoch > firstEpoch
	if joined != joins || joined && (q.Conn != r.Conn || q.PathEpoch != r.Epoch) {
		return errJoinRole
	}
	return nil
}

// refreshAuthenticated has a control connection know how its session has
// authenticated last, maybe on another path.
func (w *worker) refreshAuthenticated() {
	if s := w.login.session; s != nil {
		w.authenticated = s.authenticated.Load().Result
	}
}

// recheckInterval is the least pause between checks of a certificate that was
// verified before. One takes a tenth of a millisecond.
const recheckInterval = time.Second

// recheck checks that the initiator's certificate is still good: it may have
// expired, or the target has read that it is revoked.
func (w *worker) recheck(now time.Time) error {
	if now.After(w.authenticated.NotAfter) {
		return errExpired
	}
	if now.Sub(w.rechecked) < recheckInterval {
		return nil
	}
	w.rechecked = now
	return w.conn.server.guard.Recheck(w.authenticated, now)
}

// refuseAuth refuses an authentication that this target does not serve.
func (k *controller) refuseAuth(h wire.ControlHeader) error {
	k.closing = true
	return k.send(&wire.Refused{ID: h.ID, PathEpoch: h.PathEpoch, Status: wire.StatusNotSupported, Request: h.Opcode})
}

// SecurityStatus describes what protects sessions.
type SecurityStatus struct {
	Cipher   string          `json:"cipher"`
	Sessions []SealedSession `json:"sessions"` // in the order of their peers
}

// SealedSession describes a sealed session.
type SealedSession struct {
	Session    string    `json:"session"`
	Peer       []string  `json:"peer"`       // names in the initiator's certificate
	Serial     string    `json:"serial"`     // of the certificate, hexadecimal
	Expires    time.Time `json:"expires"`    // the certificate
	Generation uint64    `json:"generation"` // of keys of the control connection, from 1
	Rekeys     uint64    `json:"rekeys"`
	Renewed    time.Time `json:"renewed"` // the last handshake
}

// cipherName is the only cipher of sealed sessions.
const cipherName = "AES-256-GCM"

// security describes what protects sessions, or returns nil.
func (s *Server) security() *SecurityStatus {
	if s.guard == nil {
		return nil
	}
	st := &SecurityStatus{Cipher: cipherName, Sessions: []SealedSession{}}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	for _, x := range s.sessions.byID {
		if r := x.authenticated.Load(); r != nil && x.server == s {
			st.Sessions = append(st.Sessions, SealedSession{
				Session: fmt.Sprintf("%x", x.id), Peer: r.Names, Serial: r.Serial, Expires: r.NotAfter,
				Generation: x.generation.Load(), Rekeys: r.Session.Era(), Renewed: r.at,
			})
		}
	}
	slices.SortFunc(st.Sessions, func(a, b SealedSession) int {
		return cmp.Or(slices.Compare(a.Peer, b.Peer), cmp.Compare(a.Session, b.Session))
	})
	return st
}

// keys returns the keys of a session that connections may join, or nil.
func (t *sessionTable) keys(name [seal.NameSize]byte) *seal.Session {
	t.mu.Lock()
	s := t.byKeys[name]
	t.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	return s.authenticated.Load().Session.Named(name)
}

// identityOf returns who the session with these keys is of. It is anonymous if
// the session is gone, which the login will be told.
func (t *sessionTable) identityOf(name [seal.NameSize]byte) access.Identity {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byKeys[name]; s != nil {
		return s.identity
	}
	return access.Identity{}
}

// admits reports whether a connection has authenticated for the session: it
// has joined its keys, or there are none.
func (s *session) admits(r *handshake.Result) bool {
	a := s.authenticated.Load()
	if a == nil || r == nil {
		return a == nil && r == nil
	}
	return a.Session.Same(r.Session)
}
