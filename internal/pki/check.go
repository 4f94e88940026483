package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// State is what a check found.
type State string

// The states, best first.
const (
	Good State = "good"
	Soon State = "soon" // good, and ends within the time that was asked for
	Bad  State = "bad"
)

// Finding is what a check found in one place.
type Finding struct {
	What  string `json:"what"` // the file, or the host
	State State  `json:"state"`
	Text  string `json:"text"`

	Until time.Time `json:"until,omitzero"` // when it ends
}

// Check reports on all that a server or a client needs of folder: certificates,
// for whom and until when, their chain, the mode and owner of their keys, and
// the revocation list. They have to last for soon.
func Check(folder string, soon time.Duration) []Finding {
	return checker{folder, time.Now(), soon}.findings()
}

// checker checks one folder.
type checker struct {
	folder string
	now    time.Time
	soon   time.Duration
}

func (c checker) findings() []Finding {
	ca, err := readCertificate(filepath.Join(c.folder, caCert))
	if err != nil {
		return []Finding{bad(caCert, err)}
	}
	found := []Finding{c.lasting(caCert, c.authority(ca), newCertificate(caCert, ca, revoked{}).text(), ca.NotAfter)}
	list, err := readList(c.folder, ca)
	switch {
	case err != nil:
		found = append(found, bad(caCRL, err))
	case list.number != nil:
		text := fmt.Sprintf("%d revoked, next update %s", len(list.entries), list.until.Format(time.DateOnly))
		found = append(found, c.lasting(caCRL, list.current(c.now), text, list.until))
	}
	mine := 0
	for _, p := range pairs {
		cert, err := readCertificate(filepath.Join(c.folder, p.cert))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		mine++
		if err != nil {
			found = append(found, bad(p.cert, err))
			continue
		}
		text := newCertificate(p.cert, cert, list).text()
		found = append(found, c.lasting(p.cert, c.chain(cert, p, list), text, cert.NotAfter), c.key(p))
	}
	if _, err := os.Lstat(filepath.Join(c.folder, caKey)); err == nil {
		_, err := readKey(filepath.Join(c.folder, caKey))
		found = append(found, c.secret(caKey, err))
	} else if mine == 0 {
		found = append(found, bad(c.folder, errors.New("there is neither "+serverCert+" nor "+clientCert)))
	}
	return found
}

// authority reports why a certificate is not an authority's now.
func (c checker) authority(ca *x509.Certificate) error {
	switch {
	case !ca.IsCA:
		return errors.New("it is not the certificate of an authority")
	case c.now.After(ca.NotAfter):
		return fmt.Errorf("it expired on %s", ca.NotAfter.Format(time.DateOnly))
	case c.now.Before(ca.NotBefore):
		return fmt.Errorf("it is not valid before %s", ca.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// chain reports why a peer would refuse the certificate of a pair.
func (c checker) chain(cert *x509.Certificate, p pair, list revoked) error {
	switch {
	case list.has(cert.SerialNumber):
		return fmt.Errorf("the certificate of %q is revoked", cert.Subject.CommonName)
	case c.now.After(cert.NotAfter):
		return fmt.Errorf("the certificate of %q expired on %s", cert.Subject.CommonName, cert.NotAfter.Format(time.DateOnly))
	}
	chain, err := readChain(filepath.Join(c.folder, p.cert))
	if err != nil {
		return err
	}
	roots, err := authorities(c.folder)
	if err != nil {
		return err
	}
	use := x509.ExtKeyUsageClientAuth
	if p.role == Server {
		use = x509.ExtKeyUsageServerAuth
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err = cert.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: c.now, KeyUsages: []x509.ExtKeyUsage{use},
	})
	return err
}

// key checks the key of a pair: that it is the certificate's, and who may read
// it.
func (c checker) key(p pair) Finding {
	_, err := loadPair(c.folder, p.cert, p.key)
	return c.secret(p.key, err)
}

// secret describes the file of a key.
func (c checker) secret(name string, err error) Finding {
	if err != nil {
		return bad(name, err)
	}
	info, err := os.Stat(filepath.Join(c.folder, name))
	if err != nil {
		return bad(name, err)
	}
	text := fmt.Sprintf("mode %#o", info.Mode().Perm())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(", owner %d", st.Uid)
	}
	return Finding{What: name, State: Good, Text: text}
}

// lasting returns a finding about what lasts until a time, zero for ever.
func (c checker) lasting(what string, err error, text string, until time.Time) Finding {
	switch {
	case err != nil:
		return Finding{what, Bad, err.Error(), until}
	case !until.IsZero() && until.Before(c.now.Add(c.soon)):
		return Finding{what, Soon, text, until}
	}
	return Finding{what, Good, text, until}
}

func bad(what string, err error) Finding { return Finding{What: what, State: Bad, Text: err.Error()} }
