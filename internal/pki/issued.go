package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// issuedFolder is where the folder of an authority keeps the certificates that
// it issued, without their keys: PEM files named for their serial numbers.
const issuedFolder = "issued"

// serialText writes a serial number as [Revoke] reads it.
func serialText(serial *big.Int) string { return fmt.Sprintf("%032x", serial) }

// lockAuthority keeps other processes from issuing and revoking until the
// caller closes the result. It locks the key, which only those can open who may
// do either.
func lockAuthority(folder string) (*os.File, error) {
	path := filepath.Join(folder, caKey)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe has no writer
	if err != nil {
		return nil, fileError(path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// record enters a certificate among those that the authority issued.
func record(folder string, der []byte) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	at := filepath.Join(folder, issuedFolder)
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return writePEM(filepath.Join(at, serialText(cert.SerialNumber)+".pem"), "CERTIFICATE", der, 0o644)
}

// issued reads the certificates that the authority issued.
func issued(folder string) ([]*x509.Certificate, error) {
	paths, err := filepath.Glob(filepath.Join(folder, issuedFolder, "*.pem"))
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for _, path := range paths {
		cert, err := readCertificate(path)
		if err != nil {
			return nil, err
		}
		all = append(all, cert)
	}
	return all, nil
}

// find returns the serial numbers of the certificates that the authority issued
// under a name, or the serial number that the word itself is.
func find(folder, word string) ([]*big.Int, error) {
	all, err := issued(folder)
	if err != nil {
		return nil, err
	}
	var found []*big.Int
	for _, cert := range all {
		if slices.Contains(names(cert), word) {
			found = append(found, cert.SerialNumber)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	digits, explicit := strings.CutPrefix(strings.ToLower(word), "0x")
	digits = strings.ReplaceAll(digits, ":", "")
	serial, ok := new(big.Int).SetString(digits, 16)
	if !ok || serial.Sign() <= 0 || serial.BitLen() > 160 || !explicit && len(digits) < 32 {
		return nil, fmt.Errorf("%q: %w", word, ErrUnknown)
	}
	return []*big.Int{serial}, nil
}

// ErrUnknown is the error for a name under which an authority issued no
// certificate that its folder has.
var ErrUnknown = errors.New("the authority issued no certificate of that name")

// names returns the names in a certificate, the common name first.
func names(cert *x509.Certificate) []string {
	var all []string
	add := func(name string) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	add(cert.Subject.CommonName)
	for _, name := range cert.DNSNames {
		add(name)
	}
	for _, ip := range cert.IPAddresses {
		add(ip.String())
	}
	return all
}
