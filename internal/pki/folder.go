package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
)

// maximumFile bounds what is read of a file, in bytes.
const maximumFile = 1 << 20

// ServerConfig returns how a server speaks TLS with the certificates in folder. If
// verify is set, clients prove that the authority vouches for them, and that it
// still does if there is a list of those for whom it does not.
func ServerConfig(folder string, verify bool) (*tls.Config, error) {
	cert, err := loadPair(folder, serverCert, serverKey)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		// Clients of NBD stay for long and do not resume.
		SessionTicketsDisabled: true,
		// Requests come in batches; small first records are of no use to them.
		DynamicRecordSizingDisabled: true,
	}
	if !verify {
		return c, nil
	}
	pool, err := authorities(folder)
	if err != nil {
		return nil, err
	}
	revoked, err := revocations(folder)
	if err != nil {
		return nil, err
	}
	// Clients are not told which authorities there are. In TLS 1.3 crypto/tls asks
	// for RSA-PSS and not for the older RSA; GnuTLS 3.7, when it looks through
	// its certificates for one of an authority that was named, takes that to mean
	// that RSA keys will not do, and shows none.
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if err := vouched(pool, state.PeerCertificates); err != nil {
			return err
		}
		return revoked.check(state)
	}
	return c, nil
}

// vouched checks that one of the authorities vouches for a client, as crypto/tls
// does it for a server that tells its clients who they are.
func vouched(authorities *x509.CertPool, chain []*x509.Certificate) error {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots:         authorities,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

// ClientConfig returns how a client speaks TLS with the certificates in folder. It
// shows its own if there is one. The server's is for host: without verify it may
// be anybody's.
func ClientConfig(folder, host string, verify bool) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, InsecureSkipVerify: !verify}
	cert, err := loadPair(folder, clientCert, clientKey)
	switch {
	case err == nil:
		c.Certificates = []tls.Certificate{cert}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if !verify {
		return c, nil
	}
	if c.RootCAs, err = authorities(folder); err != nil {
		return nil, err
	}
	revoked, err := revocations(folder)
	if err != nil {
		return nil, err
	}
	c.VerifyConnection = revoked.check
	return c, nil
}

// loadPair reads a certificate, with what it needs to lead up to the authority,
// and its key.
func loadPair(folder, certName, keyName string) (tls.Certificate, error) {
	cert, err := readFile(filepath.Join(folder, certName))
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(filepath.Join(folder, keyName))
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("%s and %s in %q: %w", certName, keyName, folder, err)
	}
	return pair, nil
}

// authorities reads who is trusted.
func authorities(folder string) (*x509.CertPool, error) {
	path := filepath.Join(folder, caCert)
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%q has no certificate", path)
	}
	return pool, nil
}

// revoked are the serial numbers for which the authority does not vouch any more.
type revoked []*big.Int

// revocations reads the list, if there is one.
func revocations(folder string) (revoked, error) {
	path := filepath.Join(folder, caCRL)
	block, err := readPEM(path, "X509 CRL")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := x509.ParseRevocationList(block)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	ca, err := readCertificate(filepath.Join(folder, caCert))
	if err != nil {
		return nil, err
	}
	if err := list.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("%q is not the authority's: %w", path, err)
	}
	var serials revoked
	for _, entry := range list.RevokedCertificateEntries {
		serials = append(serials, entry.SerialNumber)
	}
	return serials, nil
}

// check refuses a peer whose certificate is revoked.
func (r revoked) check(state tls.ConnectionState) error {
	for _, cert := range state.PeerCertificates {
		for _, serial := range r {
			if cert.SerialNumber.Cmp(serial) == 0 {
				return fmt.Errorf("the certificate of %q is revoked", cert.Subject.CommonName)
			}
		}
	}
	return nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return cert, nil
}

func readKey(path string) (crypto.Signer, error) {
	der, err := readPEM(path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%q has a key that cannot sign", path)
	}
	return signer, nil
}

// readPEM returns the first block of a kind in a file.
func readPEM(path, kind string) ([]byte, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, fmt.Errorf("%q has no block %q", path, kind)
		}
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
}

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maximumFile {
		return nil, fmt.Errorf("%q has %d bytes, which is no certificate", path, st.Size())
	}
	return os.ReadFile(path)
}
