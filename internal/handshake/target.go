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

// Guard is how a target authenticates its initiators. It is safe for concurrent
// use.
type Guard struct {
	// TLS is that of a server: certificates, authorities, and checks such as
	// that of a revocation list. It verifies initiators.
	TLS *tls.Config

	// Session returns a session that connections may join, or nil.
	Session func(name [seal.NameSize]byte) *seal.Session

	Limits seal.Limits

	gate gate
}

// retryAfter is how long a target that is busy tells an initiator to wait.
const retryAfter = 250 * time.Millisecond

// Target is the target's end of a handshake, or of a join. Its methods are for
// one goroutine at a time.
type Target struct {
	guard    *Guard
	peer     string  // key of the gate
	admitted bool    // by the gate
	of       *Result // of a rekey: what the connection authenticated as; else nil
	tls      *engine
	pending  []byte
	hello    *wire.Auth
	answer   *wire.Auth // to it, as it was sent
	messages int
	result   *Result
	ended    bool
}

// NewTarget returns an end that has received nothing, from a peer that the
// bounds of handshakes know by a key. Inside a sealed connection, of is what it
// authenticated as: the initiator has the same names. It is nil otherwise. The
// error is that of a configuration that would not authenticate both ends.
func (g *Guard) NewTarget(peer string, of *Result) (*Target, error) {
	c := g.TLS
	switch {
	case c == nil || len(c.Certificates) == 0 && c.GetCertificate == nil:
		return nil, errors.New("a target needs a certificate of its own")
	case c.ClientAuth != tls.RequireAndVerifyClientCert &&
		(c.ClientAuth != tls.RequireAnyClientCert || c.VerifyConnection == nil):
		return nil, errors.New("a target verifies the certificates of initiators")
	}
	if err := seal.Available(); err != nil {
		return nil, err
	}
	return &Target{guard: g, peer: peer, of: of, tls: newEngine(harden(c), tls.Server)}, nil
}

// Close ends the handshake. It may be called again, and at any time.
func (h *Target) Close() {
	h.ended = true
	h.tls.close()
	if h.admitted {
		h.guard.gate.release(h.peer)
		h.admitted = false
	}
}

// Result returns what a handshake or a join that is done has established.
func (h *Target) Result() *Result { return h.result }

// Claimed returns the name and the serial number in the certificate that the
// peer of a handshake showed, believed or not. They are for a log.
func (h *Target) Claimed() (name, serial string) {
	if !h.ended {
		return "", ""
	}
	chain := h.tls.conn.ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return "", ""
	}
	return chain[0].Subject.CommonName, fmt.Sprintf("%x", chain[0].SerialNumber)
}

// Step takes a message and returns the answer to send, and whether the
// handshake is done. An error ends it, and the connection once the answer has
// been sent: [ErrRejected], [ErrProtocol] or a [*BusyError]. It is for the log;
// the answer tells the peer no more than it should know.
func (h *Target) Step(in *wire.Auth) (out *wire.Auth, done bool, err error) {
	if h.ended {
		return nil, false, errEnded
	}
	out = &wire.Auth{
		ID: in.ID, PathEpoch: in.PathEpoch, Answer: true, Status: wire.StatusAuth,
		Kind: in.Kind, Version: wire.AuthVersion,
	}
	randomize(&out.Nonce)
	switch {
	case in.Answer:
		err = fmt.Errorf("%w: an answer from the initiator", ErrProtocol)
	case in.Kind == wire.AuthJoin && h.messages == 0 && h.of == nil:
		err = h.join(in, out)
	case in.Kind == h.kind() && h.messages < maximumFlights:
		err = h.receive(in, out)
	default:
		err = fmt.Errorf("%w: a %v in place of a %v", ErrProtocol, in.Kind, h.kind())
	}
	h.messages++
	done = err == nil && out.Status == wire.StatusOK
	if done || err != nil {
		h.Close()
	}
	return out, done, err
}

// kind returns that of the message to come.
func (h *Target) kind() wire.AuthKind {
	switch {
	case h.of != nil:
		return wire.AuthRekey
	case h.hello == nil:
		return wire.AuthHello
	}
	return wire.AuthFlight
}

// receive takes a message of a handshake and fills the answer.
func (h *Target) receive(in, out *wire.Auth) error {
	if h.hello == nil {
		if err := h.begin(in, out); err != nil {
			return err
		}
	}
	flight, complete, err := h.tls.advance(in.Data)
	h.pending = append(h.pending, flight...)
	out.Data, h.pending = part(h.pending) // an alert too
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrRejected, err)
	case in.Last != complete:
		return fmt.Errorf("%w: the initiator ended the handshake too early or too late", ErrProtocol)
	case !complete:
		out.Status = wire.StatusContinue
	default:
		var name [seal.NameSize]byte
		_, _ = rand.Read(name[:]) // it never fails
		if h.result, err = newResult(h.tls, h.hello, h.answer, name, h.guard.Limits); err != nil {
			return err
		}
		if h.of != nil && !sameNames(h.of.Names, h.result.Names) {
			h.result.Session.Clear()
			h.result = nil
			return fmt.Errorf("%w: the initiator had other names before", ErrRejected)
		}
		out.Status, out.Session, out.Last, out.Data = wire.StatusOK, name, true, nil
	}
	if h.answer == nil {
		h.answer = out
	}
	return nil
}

// begin takes the offers.
func (h *Target) begin(in, out *wire.Auth) error {
	h.hello = in
	if in.Methods&wire.AuthCertificates == 0 || in.Seals&wire.SealAESGCM == 0 {
		return fmt.Errorf("%w: the initiator offers no method or seal of this target", ErrRejected)
	}
	if !h.guard.gate.acquire(h.peer) {
		out.Status, out.RetryAfter = wire.StatusRetry, uint32(retryAfter/time.Millisecond)
		return &BusyError{retryAfter}
	}
	h.admitted = true
	out.Methods, out.Seals = wire.AuthCertificates, wire.SealAESGCM
	return nil
}
