// Package pki makes, checks and reads the certificates of both ends of TLS and
// of sealed sessions. The commands "viablk pki" make them; target, attach and
// up load them from a folder and read it again.
//
// A folder of certificates is laid out as nbdkit, libnbd and QEMU have it:
//
//	ca-cert.pem      the certificate of the authority
//	ca-crl.pem       its revocation list; optional
//	ca-key.pem       the authority's own; only where certificates are issued
//	issued           certificates that the authority issued
//	server-cert.pem  server-key.pem
//	client-cert.pem  client-key.pem
//
// The package knows files and [crypto/tls.Config], and nothing of NBD.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The files of a folder.
const (
	caCert     = "ca-cert.pem"
	caCRL      = "ca-crl.pem"
	caKey      = "ca-key.pem"
	serverCert = "server-cert.pem"
	serverKey  = "server-key.pem"
	clientCert = "client-cert.pem"
	clientKey  = "client-key.pem"
)

// Role is which end of a connection a certificate is for.
type Role string

// The roles.
const (
	Server Role = "server"
	Client Role = "client"
	CA     Role = "ca" // the authority itself
)

// backdate allows for clocks that go differently.
const backdate = time.Hour

// Init makes an authority in folder, which is created if it is missing: its
// certificate, under name, and its key. It does not replace one that is there:
// the error is [fs.ErrExist].
func Init(folder, name string, validity time.Duration) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	template, err := newTemplate(name, validity)
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("make the authority's certificate: %w", err)
	}
	return writePair(folder, caCert, caKey, der, key)
}

// Issue has the authority in folder issue a certificate for a role, under the
// first of names; a server is known by all of them, host names or IP addresses.
// It goes to out, with its key and a copy of the authority's certificate.
// Nothing is replaced: the error is [fs.ErrExist].
func Issue(folder string, role Role, names []string, out string, validity time.Duration) error {
	if len(names) == 0 || names[0] == "" {
		return errors.New("a certificate needs a name")
	}
	lock, err := lockAuthority(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	ca, signer, err := readIssuer(folder)
	if err != nil {
		return err
	}
	template, err := newTemplate(names[0], validity)
	if err != nil {
		return err
	}
	template.NotAfter = earliest(template.NotAfter, ca.NotAfter)
	certName, keyName := clientCert, clientKey
	if role == Server {
		certName, keyName = serverCert, serverKey
	}
	if err := describe(template, role, names); err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("issue a certificate for %q: %w", names[0], err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := writePair(out, certName, keyName, der, key); err != nil {
		return err
	}
	if err := record(folder, der); err != nil {
		return err
	}
	err = writePEM(filepath.Join(out, caCert), "CERTIFICATE", ca.Raw, 0o644)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err // that of another certificate here, or the authority's own folder
	}
	return giveList(folder, out)
}

// describe enters what a certificate is for, and the names of a server.
func describe(template *x509.Certificate, role Role, names []string) error {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	switch role {
	case Client:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case Server:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		for _, name := range names {
			if ip := net.ParseIP(name); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, name)
			}
		}
	default:
		return fmt.Errorf("a certificate is for a server or a client, not a %q", role)
	}
	return nil
}

// readAuthority reads the certificate and the key of an authority.
func readAuthority(folder string) (*x509.Certificate, crypto.Signer, error) {
	ca, err := readCertificate(filepath.Join(folder, caCert))
	if err != nil {
		return nil, nil, err
	}
	signer, err := readKey(filepath.Join(folder, caKey))
	return ca, signer, err
}

// readIssuer reads an authority that is to issue certificates: peers take none
// of one that has expired, or whose list has.
func readIssuer(folder string) (*x509.Certificate, crypto.Signer, error) {
	ca, signer, err := readAuthority(folder)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	if now.After(ca.NotAfter) {
		return nil, nil, fileError(filepath.Join(folder, caCert), fmt.Errorf("it expired on %s", ca.NotAfter.Format(time.DateOnly)))
	}
	list, err := readList(folder, ca)
	if err != nil {
		return nil, nil, err
	}
	if list.current(now) != nil {
		return nil, nil, fileError(filepath.Join(folder, caCRL), fmt.Errorf("%w at %s", ErrStaleList, list.until.Format(time.RFC3339)))
	}
	return ca, signer, nil
}

// ErrStaleList is the error for an authority that has to make its revocation
// list anew before it issues certificates.
var ErrStaleList = errors.New("it is out of date: a new list was due")

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// newTemplate is what all certificates have.
func newTemplate(name string, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	if validity <= 0 {
		return nil, fmt.Errorf("a certificate cannot be valid for %v", validity)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(validity),
	}, nil
}

// writePair writes a certificate and its key, the key first: a certificate
// without it would be of no use.
func writePair(folder, certName, keyName string, cert []byte, key *ecdsa.PrivateKey) error {
	if _, err := os.Lstat(filepath.Join(folder, certName)); err == nil {
		return fmt.Errorf("%s: %w", filepath.Join(folder, certName), fs.ErrExist)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	if err := writePEM(filepath.Join(folder, keyName), "PRIVATE KEY", der, 0o600); err != nil {
		return err
	}
	return writePEM(filepath.Join(folder, certName), "CERTIFICATE", cert, 0o644)
}

// writePEM makes a file that was not there.
func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Close())
}
