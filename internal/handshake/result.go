package handshake

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

const (
	// exporter is the label of the keys that both ends export.
	exporter = "EXPORTER-viablk-session-1"

	// protocol is what both ends say to TLS that they speak.
	protocol = "viablk-session-1"

	// maximumFlights bounds the messages of an initiator, maximumPart the
	// bytes of TLS in one.
	maximumFlights = 8
	maximumPart    = wire.MaxAuthData
)

// Result is what two ends know when they have authenticated each other, or when
// a connection has joined their session.
type Result struct {
	Session *seal.Session
	Conn    uint16 // index of the connection; 0 of a handshake
	Epoch   uint32

	// Of the peer's certificate; of a handshake only.
	Names        []string // common name and DNS names
	Certificates []*x509.Certificate
	NotAfter     time.Time
	Serial       string // hexadecimal
	Curve        string // that the keys were agreed on with

	nonceI, nonceT [seal.NonceSize]byte
}

// Keys returns how an end seals and opens on the connection. The owner calls it
// once.
func (r *Result) Keys(end seal.End) (*seal.Sealer, *seal.Opener, error) {
	return r.Session.Conn(r.Conn, r.Epoch, r.nonceI, r.nonceT, end)
}

// newResult derives the session from a complete handshake.
func newResult(e *engine, hello, answer *wire.Auth, name [seal.NameSize]byte, limits seal.Limits) (*Result, error) {
	state := e.conn.ConnectionState()
	switch {
	case state.Version != tls.VersionTLS13 || state.DidResume:
		return nil, fmt.Errorf("%w: not a full handshake of TLS 1.3", ErrRejected)
	case state.NegotiatedProtocol != protocol:
		return nil, fmt.Errorf("%w: the peer speaks another protocol in TLS", ErrRejected)
	case len(state.PeerCertificates) == 0:
		return nil, fmt.Errorf("%w: the peer shows no certificate", ErrRejected)
	}
	transcript, err := transcriptOf(hello, answer)
	if err != nil {
		return nil, err
	}
	ekm, err := state.ExportKeyingMaterial(exporter, transcript, seal.ExportSize)
	if err != nil {
		return nil, fmt.Errorf("export the keys of the session: %w", err)
	}
	defer clear(ekm)
	session, err := seal.NewSession(ekm, hello.Nonce, answer.Nonce, name, limits)
	if err != nil {
		return nil, err
	}
	leaf := state.PeerCertificates[0]
	return &Result{
		Session: session, Epoch: hello.PathEpoch,
		Names: namesOf(leaf), Certificates: state.PeerCertificates, NotAfter: leaf.NotAfter,
		Serial: fmt.Sprintf("%x", leaf.SerialNumber), Curve: state.CurveID.String(),
		nonceI: hello.Nonce, nonceT: answer.Nonce,
	}, nil
}

// transcriptOf returns the hash of the offers and the choice.
func transcriptOf(hello, answer *wire.Auth) ([]byte, error) {
	choice := *answer
	choice.Data = nil
	var b [wire.MaxControlSize]byte
	h := sha256.New()
	for _, m := range []*wire.Auth{hello, &choice} {
		n, err := m.Encode(b[:])
		if err != nil {
			return nil, err
		}
		h.Write(b[:n])
	}
	return h.Sum(nil), nil
}

// namesOf returns the names in a certificate, each once.
func namesOf(c *x509.Certificate) []string {
	var names []string
	for _, name := range append([]string{c.Subject.CommonName}, c.DNSNames...) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// sameNames reports whether a certificate has the names of another one.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

var (
	// ErrRejected is the error for a peer that does not prove to be who it has
	// to be, and for a peer that says so of this end. Trying again is of no
	// use until a certificate, a list or a setting changes.
	ErrRejected = errors.New("authentication failed")

	// ErrProtocol is the error for a peer that breaks the rules of the
	// messages.
	ErrProtocol = errors.New("authentication: protocol error")

	errLong  = errors.New("the flights of a handshake are too long")
	errEnded = fmt.Errorf("%w: a message behind the last", ErrProtocol)
)

// BusyError is the error for a target that has too many handshakes in flight.
type BusyError struct {
	RetryAfter time.Duration
}

// Error says how long to wait.
func (e *BusyError) Error() string {
	return fmt.Sprintf("the target is busy with other handshakes: retry after %v", e.RetryAfter)
}

// harden returns how an end speaks TLS with the certificates and checks of c.
func harden(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.MinVersion, c.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	c.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768, tls.X25519}
	c.NextProtos = []string{protocol}
	c.SessionTicketsDisabled, c.ClientSessionCache = true, nil
	c.GetConfigForClient, c.KeyLogWriter = nil, nil
	return c
}
