package pki

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const day = 24 * time.Hour

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newAuthority makes an authority, and certificates for a server and a client
// in separate folders.
func newAuthority(t *testing.T) (ca, server, client string) {
	t.Helper()
	ca, server, client = t.TempDir(), t.TempDir(), t.TempDir()
	must(t, Init(ca, "test authority", day))
	must(t, Issue(ca, Server, []string{"storage.example", "127.0.0.1"}, server, day))
	must(t, Issue(ca, Client, []string{"alice"}, client, day))
	return ca, server, client
}

// handshake runs both ends and returns their errors.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	right, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	left, err := l.Accept()
	must(t, err)
	defer left.Close()
	defer right.Close()
	s, c := tls.Server(left, server), tls.Client(right, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1}) // in TLS 1.3 a client hears late that it is refused
		}
		left.Close()
		done <- err
	}()
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1))
	}
	right.Close()
	return s.ConnectionState(), <-done, clientErr
}

func TestBothEnds(t *testing.T) {
	ca, server, client := newAuthority(t)
	_, unknownPeer, unknownCA := newAuthority(t)
	s, err := serverConfig(server, true)
	must(t, err)
	for name, row := range map[string]struct {
		folder, host string
		verify, ok   bool
	}{
		"by name":                 {client, "storage.example", true, true},
		"by address":              {client, "127.0.0.1", true, true},
		"another host":            {client, "other.example", true, false},
		"another host, unchecked": {client, "other.example", false, true},
		"no certificate":          {ca, "storage.example", true, false},
		"another authority":       {unknownCA, "storage.example", false, false},
		"unknown server":          {unknownCA, "storage.example", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ClientConfig(row.folder, row.host, row.verify)
			must(t, err)
			state, serverErr, clientErr := handshake(t, s, c)
			if ok := serverErr == nil && clientErr == nil; ok != row.ok {
				t.Fatalf("server %v, client %v", serverErr, clientErr)
			}
			if row.ok && (state.Version != tls.VersionTLS13 || state.PeerCertificates[0].Subject.CommonName != "alice") {
				t.Errorf("version %#x, %v", state.Version, state.PeerCertificates)
			}
		})
	}
	t.Run("server that asks for nothing", func(t *testing.T) {
		s, err := serverConfig(unknownPeer, false)
		must(t, err)
		c, err := ClientConfig(unknownCA, "storage.example", true)
		must(t, err)
		c.Certificates = nil
		if _, a, b := handshake(t, s, c); a != nil || b != nil {
			t.Errorf("server %v, client %v", a, b)
		}
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		c, err := ClientConfig(client, "storage.example", true)
		must(t, err)
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if _, a, b := handshake(t, s, c); a == nil || b == nil {
			t.Error("an old version is spoken")
		}
	})
	t.Run("certificate for the other role", func(t *testing.T) {
		c, err := ClientConfig(client, "storage.example", true)
		must(t, err)
		c.Certificates = s.Certificates
		if _, a, _ := handshake(t, s, c); a == nil {
			t.Error("a server's certificate is taken for a client's")
		}
	})
}

// GnuTLS 3.7 shows no RSA certificate to a server of TLS 1.3 that names
// authorities and asks for RSA-PSS, as crypto/tls does: none are named.
func TestAuthoritiesAreNotNamed(t *testing.T) {
	_, server, client := newAuthority(t)
	s, err := serverConfig(server, true)
	must(t, err)
	c, err := ClientConfig(client, "storage.example", true)
	must(t, err)
	asked := 0
	local := c.Certificates[0]
	c.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked++
		if len(request.AcceptableCAs) != 0 {
			t.Errorf("the server names %q", request.AcceptableCAs)
		}
		return &local, nil
	}
	if _, a, b := handshake(t, s, c); a != nil || b != nil || asked != 1 {
		t.Errorf("server %v, client %v, asked %d times", a, b, asked)
	}
}

func TestRevocation(t *testing.T) {
	ca, server, client := newAuthority(t)
	revoke := func(folder string, serial *big.Int, signer string) {
		cert, err := readCertificate(filepath.Join(signer, caCert))
		must(t, err)
		key, err := readKey(filepath.Join(signer, caKey))
		must(t, err)
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(day),
			RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: serial, RevocationTime: time.Now()}},
		}, cert, key)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(folder, caCRL), pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}), 0o600))
	}
	c, err := ClientConfig(client, "storage.example", true)
	must(t, err)
	alice, err := readCertificate(filepath.Join(client, clientCert))
	must(t, err)
	for name, serial := range map[string]*big.Int{"alice": alice.SerialNumber, "another": big.NewInt(7)} {
		revoke(server, serial, ca)
		s, err := serverConfig(server, true)
		must(t, err)
		if _, got, _ := handshake(t, s, c); (got != nil) != (name == "alice") {
			t.Errorf("%s is revoked: %v", name, got)
		}
	}
	// A server takes another list as soon as it reads it.
	revoke(server, big.NewInt(7), ca)
	changing, err := NewServerCertificates(server, true)
	must(t, err)
	config := changing.Config()
	revoke(server, alice.SerialNumber, ca)
	if _, got, _ := handshake(t, config, c); got != nil {
		t.Errorf("before it is read: %v", got)
	}
	must(t, changing.Reload())
	if _, got, _ := handshake(t, config, c); got == nil || !strings.Contains(got.Error(), "revoked") {
		t.Errorf("when it is read: %v", got)
	}
	must(t, os.WriteFile(filepath.Join(server, serverCert), []byte("?"), 0o600))
	if err := changing.Reload(); err == nil {
		t.Error("a broken certificate is taken")
	}
	if _, got, _ := handshake(t, config, c); got == nil || !strings.Contains(got.Error(), "revoked") {
		t.Errorf("when nothing could be read: %v", got)
	}
	_, server, _ = newAuthority(t)
	other, _, _ := newAuthority(t)
	revoke(server, big.NewInt(7), other)
	if _, err := serverConfig(server, true); err == nil || !strings.Contains(err.Error(), "not the authority's") {
		t.Errorf("a list of another authority: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(server, caCRL), []byte("nothing"), 0o600))
	if _, err := serverConfig(server, true); err == nil {
		t.Error("a broken list is taken for none")
	}
}

func TestNothingIsReplaced(t *testing.T) {
	ca, server, client := newAuthority(t)
	for what, err := range map[string]error{
		"authority": Init(ca, "again", day),
		"server":    Issue(ca, Server, []string{"again"}, server, day),
		"client":    Issue(ca, Client, []string{"again"}, client, day),
	} {
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, path := range []string{filepath.Join(ca, caKey), filepath.Join(server, serverKey), filepath.Join(client, clientKey)} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
}

func TestRefusals(t *testing.T) {
	ca, server, _ := newAuthority(t)
	empty, broken, large := t.TempDir(), t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, serverCert), []byte("?"), 0o600))
	must(t, os.WriteFile(filepath.Join(broken, serverKey), []byte("?"), 0o600))
	must(t, os.WriteFile(filepath.Join(large, serverCert), nil, 0o600))
	must(t, os.Truncate(filepath.Join(large, serverCert), 1<<40))
	alone := t.TempDir()
	for _, name := range []string{serverCert, serverKey} {
		b, err := os.ReadFile(filepath.Join(server, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(alone, name), b, 0o600))
	}
	first := func(_ *tls.Config, err error) error { return err }
	for what, err := range map[string]error{
		"no folder":             first(serverConfig(filepath.Join(empty, "none"), true)),
		"empty folder":          first(serverConfig(empty, true)),
		"broken certificate":    first(serverConfig(broken, true)),
		"endless certificate":   first(serverConfig(large, true)),
		"no authority":          first(serverConfig(alone, true)),
		"client: no authority":  first(ClientConfig(empty, "h", true)),
		"issue without key":     Issue(server, Client, []string{"x"}, empty, day),
		"issue without name":    Issue(ca, Client, nil, empty, day),
		"issue an empty name":   Issue(ca, Client, []string{""}, empty, day),
		"issue for another":     Issue(ca, "judge", []string{"x"}, empty, day),
		"issue for no time":     Issue(ca, Client, []string{"x"}, empty, 0),
		"authority for no time": Init(filepath.Join(empty, "ca"), "x", -day),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// A list that is older than it may be proves nothing about a client.
func TestRevocationListOutOfDate(t *testing.T) {
	_, _, client := newAuthority(t)
	alice, err := readCertificate(filepath.Join(client, clientCert))
	must(t, err)
	chain, now := []*x509.Certificate{alice}, time.Now()
	for _, c := range []struct {
		until time.Time
		valid bool
	}{{time.Time{}, true}, {now.Add(time.Second), true}, {now, true}, {now.Add(-time.Second), false}} {
		if err := (revoked{until: c.until}).check(chain, now); (err == nil) != c.valid {
			t.Errorf("due at %v, now %v: %v", c.until, now, err)
		}
	}
}

// The file of a key that others may read or replace is refused.
func TestExposedKeys(t *testing.T) {
	ca, server, client := newAuthority(t)
	use := map[string]func() error{
		filepath.Join(server, serverKey): func() error { _, err := serverConfig(server, true); return err },
		filepath.Join(client, clientKey): func() error { _, err := ClientConfig(client, "h", false); return err },
		filepath.Join(ca, caKey):         func() error { return Issue(ca, Client, []string{"x"}, t.TempDir(), day) },
	}
	for path, use := range use {
		for mode, refused := range map[fs.FileMode]bool{
			0o600: false, 0o400: false, 0o700: false, 0o640: true, 0o440: true, 0o610: true,
			0o660: true, 0o604: true, 0o644: true, 0o602: true, 0o601: true, 0o620: true,
		} {
			must(t, os.Chmod(path, mode))
			if err := use(); errors.Is(err, ErrExposedKey) != refused || err != nil && !refused {
				t.Errorf("%s with mode %#o: %v", path, mode, err)
			}
		}
		must(t, os.Chmod(path, 0o600))
		if os.Geteuid() == 0 {
			must(t, os.Chown(path, 65534, 65534))
			if err := use(); !errors.Is(err, ErrExposedKey) {
				t.Errorf("%s of another user: %v", path, err)
			}
		}
	}
}

// serverConfig returns how a server speaks TLS with the certificates in folder.
func serverConfig(folder string, verify bool) (*tls.Config, error) {
	s, err := NewServerCertificates(folder, verify)
	if err != nil {
		return nil, err
	}
	return s.Config(), nil
}
