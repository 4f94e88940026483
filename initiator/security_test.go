package initiator_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
)

// targetName is the name in the certificate of the targets of these tests.
const targetName = "target.example"

// validity is that of the certificates of these tests.
const validity = 48 * time.Hour

// certificates makes an authority, and folders of certificates for a target and
// for initiators of these names.
func certificates(t testing.TB, names ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	ca := filepath.Join(folder, "ca")
	must(t, pki.Init(ca, "test authority", validity))
	must(t, pki.Issue(ca, pki.Server, []string{targetName}, filepath.Join(folder, "target"), validity))
	for _, name := range names {
		must(t, pki.Issue(ca, pki.Client, []string{name}, filepath.Join(folder, name), validity))
	}
	return folder
}

// targetSecurity is that of a target with the certificates in a folder.
func targetSecurity(t testing.TB, folder string) *handshake.Guard {
	t.Helper()
	c, err := pki.NewServerCertificates(filepath.Join(folder, "target"), true)
	must(t, err)
	return &handshake.Guard{TLS: c.Config()}
}

// initiatorSecurity is that of an initiator who expects a target of a name.
func initiatorSecurity(folder, initiator, target string) func() (handshake.Config, error) {
	return func() (handshake.Config, error) {
		c, err := pki.ClientConfig(filepath.Join(folder, initiator), target, true)
		return handshake.Config{TLS: c}, err
	}
}
