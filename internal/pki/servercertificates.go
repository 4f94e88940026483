package pki

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
	"time"
)

// ServerCertificates is the certificates of a server. Its methods are safe for
// concurrent use.
type ServerCertificates struct {
	folder  string
	verify  bool
	present atomic.Pointer[material]
}

// material is what a folder holds.
type material struct {
	cert        tls.Certificate
	authorities *x509.CertPool // nil without verify, as revoked
	revoked     revoked
}

// NewServerCertificates reads the certificates in folder. If verify is set,
// clients need a certificate that the authority signed and, if there is a
// revocation list, has not revoked.
func NewServerCertificates(folder string, verify bool) (*ServerCertificates, error) {
	s := &ServerCertificates{folder: folder, verify: verify}
	return s, s.Reload()
}

// Reload reads the folder again. With an error, nothing changes.
func (s *ServerCertificates) Reload() error {
	publish, err := s.PrepareReload()
	if err == nil {
		publish()
	}
	return err
}

// PrepareReload reads the folder again and changes nothing. The function that
// it returns has the server use what was read, and cannot fail.
func (s *ServerCertificates) PrepareReload() (publish func(), err error) {
	cert, err := loadPair(s.folder, serverCert, serverKey)
	if err != nil {
		return nil, err
	}
	m := &material{cert: cert}
	if s.verify {
		if m.authorities, err = authorities(s.folder); err != nil {
			return nil, err
		}
		if m.revoked, err = revocations(s.folder); err != nil {
			return nil, err
		}
	}
	return func() { s.present.Store(m) }, nil
}

// Config returns how the server speaks TLS, with the certificates that it read
// last.
func (s *ServerCertificates) Config() *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.present.Load().cert, nil
		},
		// Clients of NBD stay for long and do not resume.
		SessionTicketsDisabled: true,
		// Requests come in batches; small first records are of no use to them.
		DynamicRecordSizingDisabled: true,
	}
	if s.verify {
		// Clients are not told which authorities there are. In TLS 1.3 crypto/tls
		// asks for RSA-PSS and not for the older RSA; GnuTLS 3.7, when it looks
		// through its certificates for one of an authority that was named, takes
		// that to mean that RSA keys will not do, and shows none.
		c.ClientAuth = tls.RequireAnyClientCert
		c.VerifyConnection = func(state tls.ConnectionState) error {
			return s.Verify(state.PeerCertificates)
		}
	}
	return c
}

// Shown returns the certificate that the server shows.
func (s *ServerCertificates) Shown() []byte { return s.present.Load().cert.Certificate[0] }

// Verify checks the certificate of a client with the authorities and
// revocations that the server read last.
func (s *ServerCertificates) Verify(chain []*x509.Certificate) error {
	m := s.present.Load()
	if err := verifyClient(m.authorities, chain); err != nil {
		return err
	}
	return m.revoked.check(chain, time.Now())
}
