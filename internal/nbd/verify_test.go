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
	var revoked, panics atomic.Value
	revoked.Store("")
	panics.Store("")
	config.VerifyConnection = func(state tls.ConnectionState) error {
		switch name := state.PeerCertificates[0].Subject.CommonName; {
		case name == revoked.Load():
			return errors.New("revoked")
		case name == panics.Load():
			panic("planted in VerifyConnection")
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
	revoked.Store("")
	bob = enter("bob")
	panics.Store("alice")
	if n := f.server.VerifyClients(); n != 1 {
		t.Errorf("%d clients are ended, want alice, whose certificate is not verified", n)
	}
	alice.wantEnd()
	bob.wantAlive()
}
