package nbd

import (
	"crypto/tls"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// A client whose certificate is not valid any more loses its connection, and no
// other does.
func TestVerifyClients(t *testing.T) {
	config := certificates(t).server.Clone()
	valid := config.VerifyConnection
	var revoked atomic.Value
	revoked.Store("")
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if state.PeerCertificates[0].Subject.CommonName == revoked.Load() {
			return errors.New("revoked")
		}
		return valid(state)
	}
	f := serveTLS(t, TLS{Config: config, Required: true}, Limits{}, disks()...)
	enter := func(client string) *peer {
		p := f.dial()
		p.greet(bothFlags)
		p.startTLS(client)
		p.option(optGo, nbdtest.GoData("disk"))
		p.infos(optGo)
		p.wantAlive()
		return p
	}
	alice, bob := enter("alice"), enter("bob")
	if n := f.server.VerifyClients(); n != 0 {
		t.Errorf("%d clients are ended, with nothing changed", n)
	}
	revoked.Store("bob")
	if n := f.server.VerifyClients(); n != 1 {
		t.Errorf("%d clients are ended, want bob", n)
	}
	bob.wantEnd()
	alice.wantAlive()
}
