package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// Renew has the authority in folder issue the certificates in where anew: with
// the same names and use, another serial number, and from now on. A certificate
// keeps its key unless newKey is set; its key need not be in where then. The
// certificate that it replaces stays valid. It returns the roles whose
// certificates it renewed.
//
// The error is [ErrNotOurs] for a certificate of another authority, and
// [ErrRevoked] for one that the authority revoked.
func Renew(folder, where string, newKey bool, validity time.Duration) ([]Role, error) {
	lock, err := lockAuthority(folder)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var renewed []Role
	for _, p := range pairs {
		path := filepath.Join(where, p.cert)
		old, err := readCertificate(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return renewed, err
		}
		if err := renew(folder, where, p, old, newKey, validity); err != nil {
			if errors.Is(err, ErrNotOurs) {
				return renewed, fileError(path, err)
			}
			return renewed, fmt.Errorf("renew %q: %w", path, err)
		}
		renewed = append(renewed, p.role)
	}
	if len(renewed) == 0 {
		return nil, fileError(where, errors.New("it has neither "+serverCert+" nor "+clientCert))
	}
	return renewed, giveList(folder, where)
}

// Errors of [Renew].
var (
	ErrNotOurs = errors.New("another authority issued it")
	ErrRevoked = errors.New("it is revoked: issue another one")
)

// pair is the files of a certificate and its key.
type pair struct {
	role      Role
	cert, key string
}

var pairs = [...]pair{{Server, serverCert, serverKey}, {Client, clientCert, clientKey}}

// renew replaces one certificate.
func renew(folder, where string, p pair, old *x509.Certificate, newKey bool, validity time.Duration) error {
	ca, signer, err := readIssuer(folder)
	if err != nil {
		return err
	}
	if old.CheckSignatureFrom(ca) != nil {
		return ErrNotOurs
	}
	list, err := readList(folder, ca)
	if err != nil {
		return err
	}
	if list.has(old.SerialNumber) {
		return ErrRevoked
	}
	template, err := newTemplate(old.Subject.CommonName, validity)
	if err != nil {
		return err
	}
	template.Subject, template.RawSubject = old.Subject, old.RawSubject
	template.KeyUsage, template.ExtKeyUsage = old.KeyUsage, old.ExtKeyUsage
	template.DNSNames, template.IPAddresses = old.DNSNames, old.IPAddresses
	template.NotAfter = earliest(template.NotAfter, ca.NotAfter)
	if newKey {
		return renewPair(folder, where, p, template, ca, signer)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, old.PublicKey, signer)
	if err != nil {
		return err
	}
	if err := record(folder, der); err != nil {
		return err
	}
	return replacePEM(filepath.Join(where, p.cert), "CERTIFICATE", der, 0o644)
}

// renewPair replaces a certificate and its key. A process that dies between the
// two leaves a key that is not the certificate's; renewing again mends that.
func renewPair(folder, where string, p pair, template, ca *x509.Certificate, signer crypto.Signer) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	if err := record(folder, der); err != nil {
		return err
	}
	forKey, err := prepare(filepath.Join(where, p.key), "PRIVATE KEY", secret, 0o600)
	if err != nil {
		return err
	}
	forCert, err := prepare(filepath.Join(where, p.cert), "CERTIFICATE", der, 0o644)
	if err != nil {
		return errors.Join(err, forKey.discard())
	}
	if err := forKey.apply(); err != nil {
		return errors.Join(err, forCert.discard())
	}
	return forCert.apply()
}

// earliest returns the earlier time.
func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
