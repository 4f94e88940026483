package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Recheck verifies again, with what the configuration of the guard says now,
// the certificate that an initiator has authenticated with: it may have expired
// or been revoked. The error is [ErrRejected]. A connection that has joined has
// no certificate of its own and passes.
func (g *Guard) Recheck(r *Result) error {
	chain := r.Certificates
	if len(chain) == 0 {
		return nil
	}
	var err error
	if g.TLS.ClientAuth == tls.RequireAndVerifyClientCert {
		between := x509.NewCertPool()
		for _, c := range chain[1:] {
			between.AddCert(c)
		}
		_, err = chain[0].Verify(x509.VerifyOptions{
			Roots: g.TLS.ClientCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
	}
	if err == nil && g.TLS.VerifyConnection != nil {
		err = g.TLS.VerifyConnection(tls.ConnectionState{PeerCertificates: chain})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return nil
}
