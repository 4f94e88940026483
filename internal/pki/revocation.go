package pki

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"path/filepath"
	"time"
)

// revoked is what the authority has revoked; the zero value is nothing.
type revoked struct {
	entries []x509.RevocationListEntry
	number  *big.Int  // of the list; nil: there is none
	from    time.Time // when it was made
	until   time.Time // when a new list is due; zero: never
}

// revocations reads the list, if there is one.
func revocations(folder string) (revoked, error) {
	ca, err := readCertificate(filepath.Join(folder, caCert))
	if err != nil {
		return revoked{}, err
	}
	return readList(folder, ca)
}

// readList reads the list of an authority, if there is one.
func readList(folder string, ca *x509.Certificate) (revoked, error) {
	path := filepath.Join(folder, caCRL)
	block, err := readPEM(path, "X509 CRL")
	if errors.Is(err, fs.ErrNotExist) {
		return revoked{}, nil
	}
	if err != nil {
		return revoked{}, err
	}
	list, err := x509.ParseRevocationList(block)
	if err != nil {
		return revoked{}, fileError(path, err)
	}
	if err := list.CheckSignatureFrom(ca); err != nil {
		return revoked{}, fileError(path, fmt.Errorf("it is not the authority's: %w", err))
	}
	number := list.Number
	if number == nil {
		number = new(big.Int)
	}
	return revoked{list.RevokedCertificateEntries, number, list.ThisUpdate, list.NextUpdate}, nil
}

// has reports whether a serial number is revoked.
func (r revoked) has(serial *big.Int) bool {
	for i := range r.entries {
		if r.entries[i].SerialNumber.Cmp(serial) == 0 {
			return true
		}
	}
	return false
}

// current returns an error if the list is older than its authority allows.
func (r revoked) current(now time.Time) error {
	if !r.until.IsZero() && now.After(r.until) {
		return fmt.Errorf("%s is out of date: a new one was due at %s", caCRL, r.until.Format(time.RFC3339))
	}
	return nil
}

// check refuses a peer whose certificate is revoked, and all of them when the
// list is older than its authority allows.
func (r revoked) check(chain []*x509.Certificate, now time.Time) error {
	if err := r.current(now); err != nil {
		return err
	}
	for _, cert := range chain {
		if r.has(cert.SerialNumber) {
			return fmt.Errorf("the certificate of %q is revoked", cert.Subject.CommonName)
		}
	}
	return nil
}

// Revoke adds to the authority's list the certificates that it issued under a
// name, or the one whose serial number, in hexadecimal, the word is. With an
// empty word it only makes the list anew. The next list is due after validity.
// It returns the serial numbers that were not on the list.
//
// The error is [ErrUnknown] for a name under which nothing was issued.
func Revoke(folder, word string, validity time.Duration) ([]string, error) {
	if validity <= 0 {
		return nil, fmt.Errorf("a list cannot be valid for %v", validity)
	}
	lock, err := lockAuthority(folder)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	ca, signer, err := readAuthority(folder)
	if err != nil {
		return nil, err
	}
	list, err := readList(folder, ca)
	if err != nil {
		return nil, err
	}
	var serials []*big.Int
	if word != "" {
		if serials, err = find(folder, word); err != nil {
			return nil, err
		}
	}
	added, now := []string{}, time.Now()
	for _, serial := range serials {
		if !list.has(serial) {
			list.entries = append(list.entries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now})
			added = append(added, serialText(serial))
		}
	}
	number := big.NewInt(1)
	if list.number != nil {
		number.Add(list.number, number)
	}
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: number, ThisUpdate: now, NextUpdate: now.Add(validity), RevokedCertificateEntries: list.entries,
	}, ca, signer)
	if err != nil {
		return nil, fmt.Errorf("sign the list: %w", err)
	}
	return added, replacePEM(filepath.Join(folder, caCRL), "X509 CRL", der, 0o644)
}

// GiveList copies the authority's list to the folder of another certificate.
func GiveList(folder, out string) error {
	lock, err := lockAuthority(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	return giveList(folder, out)
}

// giveList copies the list to out, if there is one.
func giveList(folder, out string) error {
	der, err := readPEM(filepath.Join(folder, caCRL), "X509 CRL")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ours, err := readCertificate(filepath.Join(folder, caCert))
	if err != nil {
		return err
	}
	theirs, err := readCertificate(filepath.Join(out, caCert))
	if err != nil {
		return err
	}
	if !ours.Equal(theirs) {
		return fileError(filepath.Join(out, caCert), errors.New("it is the certificate of another authority"))
	}
	return replacePEM(filepath.Join(out, caCRL), "X509 CRL", der, 0o644)
}
