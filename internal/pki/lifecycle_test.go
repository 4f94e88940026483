package pki

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// replaceClient replaces the certificate of a client by one that differs.
func replaceClient(t *testing.T, ca, client string, change func(*x509.Certificate)) {
	t.Helper()
	authority, signer, err := readAuthority(ca)
	must(t, err)
	old, err := readCertificate(filepath.Join(client, clientCert))
	must(t, err)
	template, err := newTemplate("alice", day)
	must(t, err)
	template.KeyUsage, template.ExtKeyUsage = old.KeyUsage, old.ExtKeyUsage
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, authority, old.PublicKey, signer)
	must(t, err)
	must(t, replacePEM(filepath.Join(client, clientCert), "CERTIFICATE", der, 0o644))
}

// states returns what a check found by file.
func states(found []Finding) map[string]State {
	all := make(map[string]State)
	for _, f := range found {
		all[f.What] = f.State
	}
	return all
}

func TestCheck(t *testing.T) {
	now := time.Now()
	for name, row := range map[string]struct {
		change func(*x509.Certificate)
		state  State
		text   string
	}{
		"good":    {func(*x509.Certificate) {}, Good, "alice, for client, until "},
		"soon":    {func(c *x509.Certificate) { c.NotAfter = now.Add(time.Minute) }, Soon, "alice"},
		"expired": {func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, Bad, "expired on"},
		"early":   {func(c *x509.Certificate) { c.NotBefore = now.Add(time.Hour) }, Bad, "is not yet valid"},
		"other use": {
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, Bad, "incompatible key usage",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca, _, client := newAuthority(t)
			replaceClient(t, ca, client, row.change)
			found := Check(client, time.Hour)
			if len(found) != 3 || found[1].What != clientCert || found[1].State != row.state || !strings.Contains(found[1].Text, row.text) {
				t.Errorf("got %+v", found)
			}
			if found[0].State != Good || found[2].State != Good {
				t.Errorf("got %+v", found)
			}
		})
	}
	t.Run("another key", func(t *testing.T) {
		_, _, client := newAuthority(t)
		_, _, other := newAuthority(t)
		text, err := os.ReadFile(filepath.Join(other, clientKey))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(client, clientKey), text, 0o600))
		if got := states(Check(client, 0)); got[clientKey] != Bad || got[clientCert] != Good {
			t.Errorf("got %v", got)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		ca, _, _ := newAuthority(t)
		must(t, os.Remove(filepath.Join(ca, caKey)))
		if got := states(Check(ca, 0)); got[ca] != Bad {
			t.Errorf("got %v", got)
		}
	})
}

// A list whose successor is overdue keeps every client out, and says so.
func TestStaleList(t *testing.T) {
	ca, server, client := newAuthority(t)
	_, err := Revoke(ca, "", time.Nanosecond) // the list has whole seconds
	must(t, err)
	must(t, GiveList(ca, server))
	s, err := serverConfig(server, true)
	must(t, err)
	c, err := ClientConfig(client, "storage.example", true)
	must(t, err)
	if _, got, _ := handshake(t, s, c); got == nil || !strings.Contains(got.Error(), "ca-crl.pem is out of date: a new one was due at ") {
		t.Errorf("the server: %v", got)
	}
	if got := states(Check(server, 0)); got[caCRL] != Bad || got[serverCert] != Good {
		t.Errorf("the server's folder: %v", got)
	}
	must(t, GiveList(ca, client))
	_, err = Revoke(ca, "", day)
	must(t, err)
	must(t, GiveList(ca, server))
	if s, err = serverConfig(server, true); err != nil {
		t.Fatal(err)
	}
	if c, err = ClientConfig(client, "storage.example", true); err != nil {
		t.Fatal(err)
	}
	if _, _, got := handshake(t, s, c); got == nil || !strings.Contains(got.Error(), "out of date") {
		t.Errorf("the client: %v", got)
	}
}

// Concurrent revocations are all on the list, and numbers rise.
func TestConcurrentRevocation(t *testing.T) {
	ca, server, _ := newAuthority(t)
	const clients = 8
	for i := range clients {
		must(t, Issue(ca, Client, []string{fmt.Sprint("client", i)}, t.TempDir(), day))
	}
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			if added, err := Revoke(ca, fmt.Sprint("client", i), day); err != nil || len(added) != 1 {
				t.Errorf("added %v, %v", added, err)
			}
			if err := GiveList(ca, server); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	got, err := Inspect(server)
	must(t, err)
	if len(got.CRL.Revoked) != clients || got.CRL.Number != fmt.Sprint(clients) {
		t.Errorf("got %+v", got.CRL)
	}
	left, err := filepath.Glob(filepath.Join(ca, ".new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestRevokeBySerial(t *testing.T) {
	ca, _, client := newAuthority(t)
	cert, err := readCertificate(filepath.Join(client, clientCert))
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(ca, issuedFolder))) // an authority from before there was a record
	if _, err := Revoke(ca, "alice", day); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	for word, ok := range map[string]bool{
		serialText(cert.SerialNumber): true, "0x7": true, "abcdef": false, "0x": false, "0": false, "0x0": false, "-1": false,
		"0x" + strings.Repeat("f", 41): false, "00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff": true,
	} {
		if _, err := Revoke(ca, word, day); (err == nil) != ok {
			t.Errorf("%q: %v", word, err)
		}
	}
	list, err := revocations(ca)
	must(t, err)
	if !list.has(cert.SerialNumber) || !list.has(big.NewInt(7)) || len(list.entries) != 3 {
		t.Errorf("got %v", list.describe())
	}
}

// A renewed certificate has the names and use that it had, and both ends take
// it.
func TestRenew(t *testing.T) {
	ca, server, client := newAuthority(t)
	before, err := Inspect(server)
	must(t, err)
	replaceClient(t, ca, client, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	for _, newKey := range []bool{false, true} {
		for folder, role := range map[string]Role{server: Server, client: Client} {
			roles, err := Renew(ca, folder, newKey, 2*day)
			if err != nil || !slices.Equal(roles, []Role{role}) {
				t.Fatalf("%v, %v", roles, err)
			}
		}
		s, err := serverConfig(server, true)
		must(t, err)
		c, err := ClientConfig(client, "storage.example", true)
		must(t, err)
		if _, a, b := handshake(t, s, c); a != nil || b != nil {
			t.Errorf("new key %v: server %v, client %v", newKey, a, b)
		}
	}
	after, err := Inspect(server)
	must(t, err)
	x, y := before.Certificates[1], after.Certificates[1]
	if !slices.Equal(x.Names, y.Names) || !slices.Equal(x.Use, y.Use) || x.Serial == y.Serial {
		t.Errorf("before %+v, after %+v", x, y)
	}
	if authority := after.Certificates[0].Until; y.Until.After(authority) {
		t.Errorf("it is valid until %v, and its authority until %v", y.Until, authority)
	}
	if st, err := os.Stat(filepath.Join(server, serverKey)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", st.Mode(), err)
	}
	all, err := issued(ca)
	if err != nil || len(all) != 6 {
		t.Errorf("%d are recorded, %v", len(all), err)
	}
}
