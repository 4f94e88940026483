package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Certificate describes a certificate.
type Certificate struct {
	File    string    `json:"file"`  // in the folder
	Names   []string  `json:"names"` // the common name first
	Use     []Role    `json:"use"`
	Serial  string    `json:"serial"` // hexadecimal
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	Key     string    `json:"key"` // algorithm
	CA      string    `json:"ca"`  // name of the authority
	Revoked bool      `json:"revoked"`
}

// List describes a revocation list.
type List struct {
	File    string    `json:"file"`
	Number  string    `json:"number"`
	Revoked []string  `json:"revoked"` // serial numbers
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"` // when the next is due
}

// Contents is what a folder holds.
type Contents struct {
	Certificates []Certificate `json:"certificates"`
	CRL          *List         `json:"crl,omitempty"` // nil: there is none
}

// Inspect describes the certificates in folder, whether or not they are good:
// those of [Check] are. Beside the authority's key, those that it issued are
// among them.
func Inspect(folder string) (Contents, error) {
	var f Contents
	ca, err := readCertificate(filepath.Join(folder, caCert))
	if err != nil {
		return f, err
	}
	list, err := readList(folder, ca)
	if err != nil {
		return f, err
	}
	f.CRL = list.describe()
	f.Certificates = append(f.Certificates, newCertificate(caCert, ca, list))
	for _, p := range pairs {
		cert, err := readCertificate(filepath.Join(folder, p.cert))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return f, err
		}
		f.Certificates = append(f.Certificates, newCertificate(p.cert, cert, list))
	}
	all, err := issued(folder)
	if err != nil {
		return f, err
	}
	slices.SortStableFunc(all, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
	for _, cert := range all {
		name := filepath.Join(issuedFolder, serialText(cert.SerialNumber)+".pem")
		f.Certificates = append(f.Certificates, newCertificate(name, cert, list))
	}
	return f, nil
}

// newCertificate describes a certificate.
func newCertificate(file string, cert *x509.Certificate, list revoked) Certificate {
	return Certificate{
		File: file, Names: names(cert), Use: use(cert), Serial: serialText(cert.SerialNumber),
		From: cert.NotBefore, Until: cert.NotAfter, Key: keyText(cert), CA: cert.Issuer.CommonName,
		Revoked: list.has(cert.SerialNumber),
	}
}

// use returns what a certificate is for.
func use(cert *x509.Certificate) []Role {
	roles := []Role{}
	if cert.IsCA {
		roles = append(roles, CA)
	}
	for _, u := range cert.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageServerAuth:
			roles = append(roles, Server)
		case x509.ExtKeyUsageClientAuth:
			roles = append(roles, Client)
		case x509.ExtKeyUsageAny:
			roles = append(roles, Server, Client)
		}
	}
	return roles
}

// keyText names the algorithm of a key, and its strength.
func keyText(cert *x509.Certificate) string {
	switch key := cert.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return cert.PublicKeyAlgorithm.String()
}

// describe describes the list, or returns nil if there is none.
func (r revoked) describe() *List {
	if r.number == nil {
		return nil
	}
	l := &List{File: caCRL, Number: r.number.String(), Revoked: []string{}, From: r.from, Until: r.until}
	for i := range r.entries {
		l.Revoked = append(l.Revoked, serialText(r.entries[i].SerialNumber))
	}
	return l
}

// text says who a certificate is and until when.
func (c Certificate) text() string {
	roles := make([]string, 0, len(c.Use))
	for _, r := range c.Use {
		roles = append(roles, string(r))
	}
	return fmt.Sprintf("%s, for %s, until %s, %s",
		strings.Join(c.Names, " "), strings.Join(roles, " and "), c.Until.Format(time.DateOnly), c.Key)
}
