package pki

import (
	"path/filepath"
	"time"
)

// Made returns the files that [Init], for the role [CA], or [Issue] left in
// folder, and when the certificate among them expires.
func Made(folder string, role Role) (files []string, expires time.Time, err error) {
	var names []string
	switch role {
	case CA:
		names = []string{caCert, caKey}
	case Server:
		names = []string{serverCert, serverKey, caCert}
	default:
		names = []string{clientCert, clientKey, caCert}
	}
	for _, name := range names {
		files = append(files, filepath.Join(folder, name))
	}
	c, err := readCertificate(files[0])
	if err != nil {
		return nil, time.Time{}, err
	}
	return files, c.NotAfter, nil
}
