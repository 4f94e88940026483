package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"
)

// Recheck verifies again, with what the configuration of the guard says now,
// the certificate that an initiator has authenticated with: it may have expired
// or been revoked. The error is [ErrRejected]. A connection that has joined has
// no certificate of its own and passes.
func (g *Guard) Recheck(r *Result, now time.Time) error {
	options := x509.VerifyOptions{Roots: g.TLS.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: now}
	return recheck(g.TLS, g.TLS.ClientAuth == tls.RequireAndVerifyClientCert, options, r)
}

// Recheck verifies again, with what the configuration says, the certificate
// that a target has authenticated with. The error is [ErrRejected].
func (c *Config) Recheck(r *Result, now time.Time) error {
	options := x509.VerifyOptions{
		Roots: c.TLS.RootCAs, DNSName: c.TLS.ServerName, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	return recheck(c.TLS, !c.TLS.InsecureSkipVerify, options, r)
}

// recheck verifies the certificate of a peer by the options, if it is not for
// VerifyConnection alone to do.
func recheck(c *tls.Config, verify bool, options x509.VerifyOptions, r *Result) error {
	chain := r.Certificates
	if len(chain) == 0 {
		return nil
	}
	var err error
	if verify {
		options.Intermediates = x509.NewCertPool()
		for _, cert := range chain[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err = chain[0].Verify(options)
	}
	if err == nil && c.VerifyConnection != nil {
		err = c.VerifyConnection(tls.ConnectionState{PeerCertificates: chain, ServerName: c.ServerName})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return nil
}
