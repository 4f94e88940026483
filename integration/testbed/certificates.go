package testbed

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/pki"
)

// Certificates makes an authority, and folders of certificates for a server and
// for clients of these names.
func Certificates(t testing.TB, clients ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	Must(t, pki.Init(at("ca"), "test authority", time.Hour))
	Must(t, pki.Issue(at("ca"), pki.Server, []string{"localhost", "127.0.0.1"}, at("server"), time.Hour))
	for _, name := range clients {
		Must(t, pki.Issue(at("ca"), pki.Client, []string{name}, at(name), time.Hour))
	}
	return folder
}
