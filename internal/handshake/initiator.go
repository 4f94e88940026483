package handshake

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// Config is how an initiator authenticates.
type Config struct {
	// TLS is that of a client: certificates, authorities, the name of the
	// target, and checks such as that of a revocation list. It verifies the
	// target.
	TLS *tls.Config

	PathEpoch uint32
	Limits    seal.Limits
	Rekey     bool // inside a sealed connection
}

// Initiator is the initiator's end of a handshake. Its methods are for one
// goroutine at a time.
type Initiator struct {
	cfg     Config
	tls     *engine
	pending []byte     // of the flight
	last    bool       // the target was told that TLS is complete
	hello   *wire.Auth // as it was sent
	answer  *wire.Auth // to it
	id      uint32     // of the message that waits for its answer
	result  *Result
	ended   bool
}

// NewInitiator returns an end that has sent nothing. The error is that of a
// configuration that would not authenticate both ends.
func NewInitiator(cfg Config) (*Initiator, error) {
	c := cfg.TLS
	switch {
	case c == nil || len(c.Certificates) == 0 && c.GetClientCertificate == nil:
		return nil, errors.New("an initiator needs a certificate of its own")
	case c.InsecureSkipVerify && c.VerifyConnection == nil, c.ServerName == "":
		return nil, errors.New("an initiator verifies the certificate and the name of the target")
	}
	if err := seal.Available(); err != nil {
		return nil, err
	}
	return &Initiator{cfg: cfg, tls: newEngine(harden(c), tls.Client)}, nil
}

// Close ends the handshake. It may be called again, and at any time.
func (h *Initiator) Close() {
	h.ended = true
	h.tls.close()
}

// Result returns what a handshake that is done has established.
func (h *Initiator) Result() *Result { return h.result }

// Step takes the answer that arrived, nil at first, and returns the message to
// send next, or that the handshake is done. An error ends it: [ErrRejected],
// [ErrProtocol] or a [*BusyError].
func (h *Initiator) Step(in *wire.Auth) (out *wire.Auth, done bool, err error) {
	if h.ended {
		return nil, false, errEnded
	}
	switch {
	case h.hello == nil && in == nil:
		out, err = h.advance(nil)
		h.hello = out
	case h.hello == nil || in == nil:
		err = fmt.Errorf("%w: an answer to nothing", ErrProtocol)
	default:
		out, err = h.receive(in)
	}
	done = err == nil && out == nil
	if done || err != nil {
		h.Close()
	}
	return out, done, err
}

// receive takes an answer. It returns no message when the target is content.
func (h *Initiator) receive(in *wire.Auth) (*wire.Auth, error) {
	if !in.Answer || in.ID != h.id || in.PathEpoch != h.cfg.PathEpoch || in.Kind != h.kind() {
		return nil, fmt.Errorf("%w: the answer is of another message", ErrProtocol)
	}
	switch in.Status {
	case wire.StatusOK, wire.StatusContinue:
	case wire.StatusRetry:
		return nil, &BusyError{time.Duration(in.RetryAfter) * time.Millisecond}
	default:
		if alert := h.tls.alert(in.Data); alert != nil {
			return nil, fmt.Errorf("%w: the target refused: %w", ErrRejected, alert)
		}
		return nil, fmt.Errorf("%w: the target refused (%v)", ErrRejected, in.Status)
	}
	if h.answer == nil {
		if in.Methods != wire.AuthCertificates || in.Seals != wire.SealAESGCM {
			return nil, fmt.Errorf("%w: the target chose what was not offered", ErrRejected)
		}
		h.answer = in
	}
	switch {
	case in.Status == wire.StatusContinue && !h.last:
		return h.advance(in.Data)
	case in.Status == wire.StatusOK && h.last && len(in.Data) == 0:
		var err error
		h.result, err = newResult(h.tls, h.hello, h.answer, in.Session, h.cfg.Limits)
		return nil, err
	}
	return nil, fmt.Errorf("%w: the target ended the handshake too early or too late", ErrProtocol)
}

// advance runs TLS on with what arrived, and returns the next message.
func (h *Initiator) advance(in []byte) (*wire.Auth, error) {
	out, complete, err := h.tls.advance(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRejected, err)
	}
	if h.id == maximumFlights {
		return nil, fmt.Errorf("%w: more than %d flights", ErrProtocol, maximumFlights)
	}
	h.pending = append(h.pending, out...)
	h.id++
	m := &wire.Auth{ID: h.id, PathEpoch: h.cfg.PathEpoch, Kind: h.kind(), Version: wire.AuthVersion}
	if h.hello == nil {
		m.Methods, m.Seals = wire.AuthCertificates, wire.SealAESGCM
	}
	m.Data, h.pending = part(h.pending)
	m.Last = complete && len(h.pending) == 0
	h.last = m.Last
	randomize(&m.Nonce)
	return m, nil
}

// kind returns that of the next message, or of the last one until there is a
// next.
func (h *Initiator) kind() wire.AuthKind {
	switch {
	case h.cfg.Rekey:
		return wire.AuthRekey
	case h.answer == nil:
		return wire.AuthHello
	}
	return wire.AuthFlight
}

// part cuts off what one message carries.
func part(flight []byte) (first, rest []byte) {
	n := min(len(flight), maximumPart)
	if n == 0 {
		return nil, nil
	}
	return flight[:n:n], flight[n:]
}

// randomize fills a nonce.
func randomize(nonce *[seal.NonceSize]byte) { _, _ = rand.Read(nonce[:]) } // it never fails
