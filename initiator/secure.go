package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// With Config.Security, a session is sealed. Its first control connection, and
// one that discovers, authenticates by a handshake before its login; the others
// join with keys of the session. Nothing but these messages leaves in clear. A
// new session has a new handshake.

// SecurityError is why the ends of a session do not trust each other: a
// certificate is wrong or not valid, or only one of the ends wants security.
// Another attempt is of no use until that changes. A device that has lost its
// target waits for it.
type SecurityError struct{ cause error }

func (e *SecurityError) Error() string { return e.cause.Error() }
func (e *SecurityError) Unwrap() error { return e.cause }

// errNoSecurity is a target that does not authenticate.
var errNoSecurity = &SecurityError{errors.New("the target offers no security: leave out the certificates to take it as it is")}

// sealed reports whether sessions are sealed.
func (c *Config) sealed() bool { return c.Security != nil }

// secure authenticates a connection for its login, and seals it.
func (p *path) secure(ctx context.Context, c *carrier.Carrier, q *wire.LoginRequest) error {
	var result *handshake.Result
	var keys *sessionKeys
	var err error
	joins := q.Role == wire.RoleIO || p.epoch > firstEpoch
	if joins {
		result, err = p.joinKeys(ctx, c, q)
	} else if keys, err = p.authenticate(ctx, c); err == nil {
		result = keys.Result
	}
	if errors.Is(err, handshake.ErrRejected) && !joins {
		err = &SecurityError{err} // a session that is not known is lost, no more
	}
	if err != nil {
		return err
	}
	sealer, opener, err := result.Keys(seal.Initiator)
	if err != nil {
		return err
	}
	c.Seal(sealer, opener)
	if !joins {
		p.s.keys.Store(keys)
	}
	return nil
}

// forgetKeys clears the keys of the session; connections go on with theirs.
func (s *session) forgetKeys() {
	if k := s.keys.Load(); k != nil {
		k.Session.Clear()
	}
}

// authenticate makes the keys of a session.
func (p *path) authenticate(ctx context.Context, c *carrier.Carrier) (*sessionKeys, error) {
	cfg, err := p.s.cfg.Security()
	if err != nil {
		return nil, &SecurityError{err}
	}
	cfg.PathEpoch = p.epoch
	h, err := handshake.NewInitiator(cfg)
	if err != nil {
		return nil, &SecurityError{err}
	}
	defer h.Close()
	r, err := p.s.shakeHands(ctx, c, h)
	if err != nil {
		return nil, err
	}
	return newSessionKeys(r, &cfg, p.s.cfg.Scheduler.Now()), nil
}

// joinKeys has a connection join the keys of the session.
func (p *path) joinKeys(ctx context.Context, c *carrier.Carrier, q *wire.LoginRequest) (*handshake.Result, error) {
	j, err := handshake.NewJoin(p.s.keys.Load().Session, q.Conn, p.epoch)
	if err != nil {
		return nil, err
	}
	a, err := p.s.askAuth(ctx, c, j.Request())
	if err != nil {
		return nil, err
	}
	return j.Receive(a)
}

// shakeHands exchanges the messages of a handshake.
func (s *session) shakeHands(ctx context.Context, c *carrier.Carrier, h *handshake.Initiator) (*handshake.Result, error) {
	var in *wire.Auth
	for {
		out, done, err := h.Step(in)
		if err != nil || done {
			return h.Result(), err
		}
		if in, err = s.askAuth(ctx, c, out); err != nil {
			return nil, err
		}
	}
}

// askAuth sends a message of an authentication and returns the answer.
func (s *session) askAuth(ctx context.Context, c *carrier.Carrier, m *wire.Auth) (*wire.Auth, error) {
	msg, err := s.await(ctx, c, m)
	if err != nil {
		return nil, fmt.Errorf("authenticate: %w", err)
	}
	switch wire.RawOpcode(msg) {
	case wire.OpAuthResponse:
		a := new(wire.Auth)
		if err := a.Decode(msg); err != nil {
			return nil, fmt.Errorf("authenticate: %w", err)
		}
		return a, nil
	case wire.OpRefused:
		return nil, errNoSecurity
	case wire.OpLoginResponse:
		var a wire.LoginResponse
		if err := a.Decode(msg); err != nil {
			return nil, fmt.Errorf("authenticate: %w", err)
		}
		return nil, refusalOf(&a)
	}
	return nil, fmt.Errorf("authenticate: unexpected %v", wire.RawOpcode(msg))
}

// refusalOf returns why a target refused a login.
func refusalOf(a *wire.LoginResponse) error {
	err := &refusedError{*a}
	switch a.Reason {
	case wire.ReasonAuthRequired:
		return &SecurityError{fmt.Errorf("the target wants certificates: --certificates FOLDER: %w", err)}
	case wire.ReasonAuthFailed:
		return &SecurityError{err}
	}
	return err
}

// SecurityStatus describes what protects a session.
type SecurityStatus struct {
	Cipher     string    `json:"cipher"`
	Agreement  string    `json:"agreement"`  // of keys
	Peer       []string  `json:"peer"`       // names in the target's certificate
	Serial     string    `json:"serial"`     // of the certificate, hexadecimal
	Expires    time.Time `json:"expires"`    // the certificate
	Generation uint64    `json:"generation"` // of keys, the latest of a connection; from 1
	Rekeys     uint64    `json:"rekeys"`
	Renewed    time.Time `json:"renewed"` // the last handshake
}

// cipherName is the only cipher of sealed sessions.
const cipherName = "AES-256-GCM"

// security describes what protects the session, or returns nil.
func (s *session) security() *SecurityStatus {
	k := s.keys.Load()
	if k == nil {
		return nil
	}
	return &SecurityStatus{
		Cipher: cipherName, Agreement: k.Curve, Peer: k.Names, Serial: k.Serial, Expires: k.NotAfter,
		Generation: 1, Rekeys: k.Session.Era(), Renewed: k.at,
	}
}
