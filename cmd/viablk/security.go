package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target"
)

// sealedBy is the certificates that a target seals sessions with.
type sealedBy struct {
	certificates *pki.ServerCertificates // nil: none
	mu           sync.Mutex
	servers      []*target.Server // +checklocks:mu
	shown        []byte           // the certificate at the last rekey; +checklocks:mu
}

// newSealedBy reads the certificates, if the target seals sessions at one of
// the URIs. They are among those that are read again: sessions whose
// certificates are not valid then end.
func newSealedBy(c config.Config, uris []config.URI, again *certificates) (*sealedBy, error) {
	s := new(sealedBy)
	for _, u := range uris {
		if !c.Seals(u) || s.certificates != nil {
			continue
		}
		var err error
		if s.certificates, err = pki.NewServerCertificates(c.VIACertificates(), true); err != nil {
			return nil, fmt.Errorf("%s: certificates: %w", u, pkiError(err))
		}
		s.shown = s.certificates.Shown()
		again.use(usedCertificates{c.VIACertificates(), s.certificates.PrepareReload, s.verify})
	}
	return s, nil
}

// guard returns how a server authenticates its initiators.
func (s *sealedBy) guard() *handshake.Guard {
	return &handshake.Guard{TLS: s.certificates.Config()}
}

// add has the sessions of a server verified again.
func (s *sealedBy) add(server *target.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, server)
}

// verify ends the sessions whose certificates are not valid any more. If the
// target has another certificate since the last call, the others get new keys.
func (s *sealedBy) verify() (ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.certificates.Shown()
	for _, server := range s.servers {
		ended += server.VerifyInitiators(s.certificates.Verify)
		if !bytes.Equal(shown, s.shown) {
			server.Rekey()
		}
	}
	s.shown = shown
	return ended
}

var errNoClient = errors.New("it has no certificate of a client: make it with viablk pki issue")

// sealed returns how sessions with the target of a URI are sealed, or nil. Each
// handshake reads the certificates anew and hands seen, which may be nil, the
// state of TLS. The error is that of certificates that cannot be used.
func sealed(u config.URI, seen func(tls.ConnectionState)) (func() (handshake.Config, error), error) {
	if !u.Sealable() || u.Certificates == "" {
		return nil, nil
	}
	read := func() (handshake.Config, error) {
		c, err := pki.ClientConfig(u.Certificates, u.ServerName(), true)
		if err != nil {
			return handshake.Config{}, fmt.Errorf("%s: certificates: %w", u.Peer(), pkiError(err))
		}
		if len(c.Certificates) == 0 {
			return handshake.Config{}, fmt.Errorf("%s: certificates: %w", u.Peer(), &pki.FileError{Path: u.Certificates, Err: errNoClient})
		}
		verify := c.VerifyConnection
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if seen != nil {
				seen(state)
			}
			return verify(state)
		}
		return handshake.Config{TLS: c}, nil
	}
	_, err := read()
	return read, err
}

// useRemote adds the certificates to reach a target with. Each session reads
// them anew; SIGHUP says whether the next will find them good.
func (c *certificates) useRemote(u config.URI) error {
	read, err := sealed(u, nil)
	if err != nil || read == nil {
		return err
	}
	c.use(usedCertificates{folder: u.Certificates, read: func() (func(), error) { _, err := read(); return nil, err }})
	return nil
}

// securityReport is what protects the session in which a server was asked.
type securityReport struct {
	Cipher    string    `json:"cipher"`
	Agreement string    `json:"agreement"` // of keys
	Peer      []string  `json:"peer"`      // names in the target's certificate
	Expires   time.Time `json:"expires"`   // the certificate
}

// sealedCipher is the cipher of sealed sessions.
const sealedCipher = "AES-256-GCM"

// newSecurityReport describes a handshake.
func newSecurityReport(state *tls.ConnectionState) *securityReport {
	leaf := state.PeerCertificates[0]
	return &securityReport{sealedCipher, state.CurveID.String(), namesOf(leaf), leaf.NotAfter}
}

// namesOf returns the names in a certificate.
func namesOf(cert *x509.Certificate) []string {
	var names []string
	for _, name := range append([]string{cert.Subject.CommonName}, cert.DNSNames...) {
		if len(names) == 0 || name != names[0] {
			names = append(names, name)
		}
	}
	return names
}

// securityText describes what protects a session.
func securityText(cipher, agreement string, peer []string, expires time.Time, generation uint64) string {
	text := fmt.Sprintf("certificates, %s, %s, peer %q until %s", cipher, cmp.Or(agreement, "?"), strings.Join(peer, " "), expires.Format(time.DateOnly))
	if generation > 0 {
		text += fmt.Sprintf(", generation %d", generation)
	}
	return text
}

// attachedSecurity describes what protects the session of an attached disk.
func attachedSecurity(s *initiator.SecurityStatus) string {
	if s == nil {
		return "none"
	}
	return securityText(s.Cipher, s.Agreement, s.Peer, s.Expires, s.Generation)
}
