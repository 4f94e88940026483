package handshake_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const host = "target.example"

// authority is a folder of an authority with one certificate of each role.
type authority struct {
	ca, server, client string // folders
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	dir := t.TempDir()
	a := authority{filepath.Join(dir, "ca"), filepath.Join(dir, "server"), filepath.Join(dir, "client")}
	must(t, pki.Init(a.ca, "test", time.Hour))
	must(t, pki.Issue(a.ca, pki.Server, []string{host}, a.server, time.Hour))
	must(t, pki.Issue(a.ca, pki.Client, []string{"db1.example"}, a.client, time.Hour))
	return a
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// initiator returns how one authenticates with the folder of a client.
func (a authority) initiator(t testing.TB) handshake.Config {
	t.Helper()
	c, err := pki.ClientConfig(a.client, host, true)
	must(t, err)
	return handshake.Config{TLS: c, PathEpoch: 7}
}

// guard returns how a target authenticates with the folder of a server.
func (a authority) guard(t testing.TB) *handshake.Guard {
	t.Helper()
	c, err := pki.NewServerCertificates(a.server, true)
	must(t, err)
	return &handshake.Guard{TLS: c.Config()}
}

// issue signs a certificate as edit wants it.
func (a authority) issue(t testing.TB, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(a.ca, "ca-cert.pem"), filepath.Join(a.ca, "ca-key.pem"))
	must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(4711), Subject: pkix.Name{CommonName: "made"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	edit(template)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey.(crypto.Signer))
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// outcome is what both ends make of a handshake.
type outcome struct {
	initiator, target       *handshake.Result
	initiatorErr, targetErr error
	messages                int // of the initiator
	claimed                 string
}

// change changes the message of a number before it arrives: even ones are the
// initiator's.
type change func(number int, m *wire.Auth)

// run has two ends shake hands.
func run(t testing.TB, cfg handshake.Config, g *handshake.Guard, changes ...change) (o outcome) {
	t.Helper()
	i, err := handshake.NewInitiator(cfg)
	must(t, err)
	defer i.Close()
	var of *handshake.Result
	if cfg.Rekey {
		of = &handshake.Result{Names: []string{"db1.example"}}
	}
	target, err := g.NewTarget("peer", of)
	must(t, err)
	defer target.Close()
	var in *wire.Auth
	for number := 0; ; number += 2 {
		request, done, err := i.Step(in)
		if o.initiatorErr = err; err != nil || done {
			o.initiator = i.Result()
			break
		}
		o.messages++
		answer, done, err := target.Step(travel(t, request, number, changes))
		if o.targetErr = err; err != nil || done {
			o.target = target.Result()
		}
		in = travel(t, answer, number+1, changes)
	}
	target.Close()
	o.claimed, _ = target.Claimed()
	return o
}

// travel encodes, changes and decodes a message.
func travel(t testing.TB, m *wire.Auth, number int, changes []change) *wire.Auth {
	t.Helper()
	copied := *m
	copied.Data = bytes.Clone(m.Data)
	for _, c := range changes {
		c(number, &copied)
	}
	b := make([]byte, wire.MaxControlSize)
	n, err := copied.Encode(b)
	must(t, err)
	var arrived wire.Auth
	must(t, arrived.Decode(b[:n]))
	return &arrived
}

// agree reports whether what each end seals opens at the other.
func agree(t testing.TB, i, target *handshake.Result) bool {
	t.Helper()
	si, oi, err := i.Keys(seal.Initiator)
	must(t, err)
	st, ot, err := target.Keys(seal.Target)
	must(t, err)
	opens := 0
	for _, way := range []struct {
		*seal.Sealer
		*seal.Opener
	}{{si, ot}, {st, oi}} {
		b := make([]byte, 16+seal.Overhead)
		copy(b[seal.PrefixSize:], "sixteen byte msg")
		_, _, err := way.Sealer.Capsule(b, 16)
		must(t, err)
		if message, _, err := way.Opener.Capsule(b); err == nil && string(message) == "sixteen byte msg" {
			opens++
		}
	}
	if opens == 1 {
		t.Error("one direction agrees and the other does not")
	}
	return opens == 2
}

// writePair replaces the certificate of a folder.
func writePair(t testing.TB, folder, role string, c tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, role+"-cert.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), 0o644))
	must(t, os.WriteFile(filepath.Join(folder, role+"-key.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}
