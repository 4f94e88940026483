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
	must(t, g.Recheck(o.target, time.Now()))
	must(t, g.Recheck(&handshake.Result{}, time.Now())) // of a join

	_, err = pki.Revoke(a.ca, "db1.example", time.Hour)
	must(t, err)
	must(t, pki.GiveList(a.ca, a.server))
	must(t, g.Recheck(o.target, time.Now())) // not read yet
	must(t, certificates.Reload())
	if err := g.Recheck(o.target, time.Now()); !errors.Is(err, handshake.ErrRejected) || !strings.Contains(err.Error(), "revoked") {
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
	must(t, g.Recheck(o.target, time.Now()))
	g.TLS.ClientCAs = x509.NewCertPool()
	if err := g.Recheck(o.target, time.Now()); !errors.Is(err, handshake.ErrRejected) {
		t.Errorf("%v", err)
	}
}

func BenchmarkRecheck(b *testing.B) {
	a := newAuthority(b)
	g := a.guard(b)
	o := run(b, a.initiator(b), g)
	must(b, o.initiatorErr)
	for b.Loop() {
		must(b, g.Recheck(o.target, time.Now()))
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

// An initiator finds a target that is revoked, has expired, or is not the one
// of its URI any more.
func TestRecheckOfTarget(t *testing.T) {
	a := newAuthority(t)
	o := run(t, a.initiator(t), a.guard(t))
	must(t, o.initiatorErr)
	refused := func(what string, edit func(*handshake.Config), now time.Time) {
		t.Helper()
		cfg := a.initiator(t)
		edit(&cfg)
		err := cfg.Recheck(o.initiator, now)
		if ok := what == ""; ok && err != nil || !ok && (!errors.Is(err, handshake.ErrRejected) || !strings.Contains(err.Error(), what)) {
			t.Errorf("%q: %v", what, err)
		}
	}
	same := func(*handshake.Config) {}
	refused("", same, time.Now())
	refused("expired", same, o.initiator.NotAfter.Add(time.Second))
	refused("other.example", func(c *handshake.Config) { c.TLS.ServerName = "other.example" }, time.Now())
	refused("unknown authority", func(c *handshake.Config) { c.TLS.RootCAs = x509.NewCertPool() }, time.Now())
	_, err := pki.Revoke(a.ca, host, time.Hour)
	must(t, err)
	must(t, pki.GiveList(a.ca, a.client))
	refused("revoked", same, time.Now())
}
