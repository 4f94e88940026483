package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fixedFolder returns the files of a folder that is the same in every process,
// so that an input of a fuzzer means the same in each: keys are fixed, and
// signatures depend on them and what is signed alone.
func fixedFolder(t testing.TB) map[string][]byte {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	files := map[string][]byte{}
	write := func(name, kind string, der []byte) {
		files[name] = pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	from, until := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
	var ca *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i, c := range []struct {
		role      Role
		names     []string
		cert, key string
	}{
		{CA, []string{"authority"}, caCert, caKey},
		{Server, []string{"storage.example", "192.0.2.1"}, serverCert, serverKey},
		{Client, []string{"alice"}, clientCert, clientKey},
	} {
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{byte(i + 1)}, 32))
		must(err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: c.names[0]}, NotBefore: from, NotAfter: until,
		}
		if c.role == CA {
			template.IsCA, template.BasicConstraintsValid = true, true
			template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
			ca, signer = template, key
		} else {
			must(describe(template, c.role, c.names))
		}
		der, err := x509.CreateCertificate(nil, template, ca, &key.PublicKey, signer)
		must(err)
		write(c.cert, "CERTIFICATE", der)
		if c.role == CA {
			ca, err = x509.ParseCertificate(der)
			must(err)
		}
		der, err = x509.MarshalPKCS8PrivateKey(key)
		must(err)
		write(c.key, "PRIVATE KEY", der)
	}
	der, err := x509.CreateRevocationList(nil, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: from, NextUpdate: until,
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(3), RevocationTime: from}},
	}, ca, signer)
	must(err)
	write(caCRL, "X509 CRL", der)
	return files
}

// FuzzFolder gives all that reads a folder of certificates one file of any
// content. Nothing panics, an error names a file of the folder, and what is
// read without one can be used.
func FuzzFolder(f *testing.F) {
	good := fixedFolder(f)
	if again := fixedFolder(f); !maps.EqualFunc(good, again, bytes.Equal) {
		f.Fatal("the folder is another one each time")
	}
	names := []string{caCert, caCRL, caKey, serverCert, serverKey, clientCert, clientKey}
	for at, name := range names {
		block, _ := pem.Decode(good[name])
		f.Add(byte(at), good[name], false)
		f.Add(byte(at), block.Bytes, true)
		f.Add(byte(at), good[names[(at+1)%len(names)]], false)
		f.Add(byte(at), bytes.Repeat(good[name], 3), false)
		f.Add(byte(at), good[name][:len(good[name])/2], false)
	}
	f.Add(byte(0), []byte{}, false)
	folder := f.TempDir()
	for name, text := range good {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, at byte, content []byte, der bool) {
		name := names[int(at)%len(names)]
		if der { // the fuzzer finds no base64
			block, _ := pem.Decode(good[name])
			content = pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: content})
		}
		path := filepath.Join(folder, name)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.WriteFile(path, content, 0o600))
		defer func() { must(os.WriteFile(path, good[name], 0o600)) }()

		intact := bytes.Equal(content, good[name])
		check := func(err error) {
			var file *FileError
			if intact && err != nil {
				t.Errorf("the folder is good: %v", err)
			}
			if err != nil && (!errors.As(err, &file) || filepath.Dir(file.Path) != folder && filepath.Dir(file.Path) != filepath.Join(folder, issuedFolder)) {
				t.Errorf("the error names no file of the folder: %v", err)
			}
		}
		s, err := NewServerCertificates(folder, true)
		if check(err); err == nil {
			_ = s.Verify([]*x509.Certificate{s.present.Load().cert.Leaf}) // of a server
		}
		c, err := ClientConfig(folder, "storage.example", true)
		if check(err); err == nil && len(c.Certificates) > 0 {
			_ = c.VerifyConnection(tls.ConnectionState{})
		}
		_, err = Inspect(folder)
		check(err)
		_, _, err = readIssuer(folder)
		check(err)
		for _, finding := range Check(folder, time.Hour) {
			if finding.What == "" || finding.State == "" || finding.Text == "" {
				t.Errorf("an empty finding: %+v", finding)
			}
			if isRevoked := finding.What == clientCert; intact && (finding.State == Good) == isRevoked {
				t.Errorf("the folder is good, but for a revoked client: %+v", finding)
			}
		}
	})
}
