package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// verifyClient checks that one of the authorities signed the certificate of a
// client, as crypto/tls does it for a server that tells its clients who they
// are.
func verifyClient(authorities *x509.CertPool, chain []*x509.Certificate) error {
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

// ClientConfig returns how a client speaks TLS with the certificates in folder.
// It shows its own if there is one. The server's is for host: without verify
// any certificate will do.
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
	c.VerifyConnection = func(state tls.ConnectionState) error {
		return revoked.check(state.PeerCertificates, time.Now())
	}
	return c, nil
}

var errNoCertificate = errors.New("it has no certificate")

// loadPair reads a certificate, with what it needs to lead up to the authority,
// and its key.
func loadPair(folder, certName, keyName string) (tls.Certificate, error) {
	cert, err := readFile(filepath.Join(folder, certName))
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readSecret(filepath.Join(folder, keyName))
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fileError(filepath.Join(folder, certName), fmt.Errorf("beside %s: %w", keyName, err))
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
		return nil, fileError(path, errNoCertificate)
	}
	return pool, nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fileError(path, err)
	}
	return cert, nil
}

// readChain reads all certificates in a file: the first, and those that lead
// from it up to the authority.
func readChain(path string) ([]*x509.Certificate, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fileError(path, err)
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		return nil, fileError(path, errNoCertificate)
	}
	return chain, nil
}

func readKey(path string) (crypto.Signer, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	der, err := decodePEM(path, "PRIVATE KEY", text)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fileError(path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fileError(path, errors.New("it has a key that cannot sign"))
	}
	return signer, nil
}

// readPEM returns the first block of a kind in a file.
func readPEM(path, kind string) ([]byte, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return decodePEM(path, kind, text)
}

func decodePEM(path, kind string, text []byte) ([]byte, error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, fileError(path, fmt.Errorf("it has no block %q", kind))
		}
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
}
