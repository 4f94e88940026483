package handshake_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
)

// A certificate that is revoked after the handshake, or was of an authority
// that is trusted no more, fails at the next check; others pass.
func TestRecheck(t *testing.T) {
	a := newAuthority(t)
	certificates, err := pki.NewServerCertificates(a.server, true)
	must(t, err)
	g := &handshake.Guard{TLS: certificates.Config()}
	o := run(t, a.initiator(t), g)
	must(t, o.initiatorErr)
	must(t, g.Recheck(o.target))
	must(t, g.Recheck(&handshake.Result{})) // of a join

	_, err = pki.Revoke(a.ca, "db1.example", time.Hour)
	must(t, err)
	must(t, pki.GiveList(a.ca, a.server))
	must(t, g.Recheck(o.target)) // not read yet
	must(t, certificates.Reload())
	if err := g.Recheck(o.target); !errors.Is(err, handshake.ErrRejected) || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("%v", err)
	}
}

// So with a configuration in which crypto/tls verifies.
func TestRecheckOfVerifyingConfiguration(t *testing.T) {
	a := newAuthority(t)
	g := a.guard(t)
	roots := a.initiator(t).TLS.RootCAs
	g.TLS.ClientAuth, g.TLS.ClientCAs, g.TLS.VerifyConnection = tls.RequireAndVerifyClientCert, roots, nil
	o := run(t, a.initiator(t), g)
	must(t, errors.Join(o.initiatorErr, o.targetErr))
	must(t, g.Recheck(o.target))
	g.TLS.ClientCAs = x509.NewCertPool()
	if err := g.Recheck(o.target); !errors.Is(err, handshake.ErrRejected) {
		t.Errorf("%v", err)
	}
}

func BenchmarkRecheck(b *testing.B) {
	a := newAuthority(b)
	g := a.guard(b)
	o := run(b, a.initiator(b), g)
	must(b, o.initiatorErr)
	for b.Loop() {
		must(b, g.Recheck(o.target))
	}
}

// BenchmarkHandshake is both ends of a handshake.
func BenchmarkHandshake(b *testing.B) {
	a := newAuthority(b)
	cfg, g := a.initiator(b), a.guard(b)
	for b.Loop() {
		o := run(b, cfg, g)
		must(b, o.initiatorErr)
	}
}
