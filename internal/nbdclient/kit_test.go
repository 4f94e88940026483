package nbdclient

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target/backend/backendtest"
)

// kit runs the device kit against a server.
func kit(t *testing.T, server address, broken func(t testing.TB) address) {
	t.Helper()
	allocations := 0.0
	if server.tls != nil {
		allocations = 1 // of crypto/tls, for its records
	}
	backendtest.Run(t, server.open, backendtest.Options{
		Allocations: allocations,
		Broken:      func(t testing.TB) block.Device { return broken(t).open(t) },
	})
}

// brokenKit is an nbdkit whose writes fail.
func brokenKit(t testing.TB) address {
	return nbdkit(t, "--filter=error", "memory", "80M", "error-pwrite=EIO", "error-pwrite-rate=100%").address
}

// brokenOurs is a server of this module whose writes fail.
func brokenOurs(network string) func(t testing.TB) address {
	return func(t testing.TB) address {
		t.Helper()
		return ours(t, network, nbd.TLS{}, inMemory("fault:write=EIO:"))
	}
}

// TestNbdkit runs the kit against nbdkit: with a connection for each queue and
// with one for all, with replies in chunks and without.
func TestNbdkit(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"connections", nil},
		{"one connection", []string{"--filter=multi-conn", "multi-conn-mode=disable"}},
		{"simple replies", []string{"--no-sr"}},
		{"small pieces", []string{"--filter=blocksize-policy", "blocksize-minimum=512", "blocksize-maximum=64K", "blocksize-error-policy=error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var flags, parameters []string
			for _, a := range c.args {
				if a[0] == '-' {
					flags = append(flags, a)
				} else {
					parameters = append(parameters, a)
				}
			}
			args := append(append(flags, "memory", "80M"), parameters...)
			kit(t, nbdkit(t, args...).address, brokenKit)
		})
	}
}

// TestQemu runs the kit against qemu-nbd.
func TestQemu(t *testing.T) {
	for name, args := range map[string][]string{
		"connections":    {"-e", "0"},
		"one connection": nil,
	} {
		t.Run(name, func(t *testing.T) { kit(t, qemu(t, args...).address, brokenKit) })
	}
}

// TestTLS runs the kit against the server of this module, with certificates on
// both sides.
func TestTLS(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	must(t, pki.Init(at("ca"), "test authority", time.Hour))
	must(t, pki.Issue(at("ca"), pki.Server, []string{"localhost"}, at("server"), time.Hour))
	must(t, pki.Issue(at("ca"), pki.Client, []string{"alice"}, at("alice"), time.Hour))
	certificates, err := pki.NewServerCertificates(at("server"), true)
	must(t, err)
	client, err := pki.ClientConfig(at("alice"), "localhost", true)
	must(t, err)
	server := ours(t, "tcp", nbd.TLS{Config: certificates.Config(), Required: true}, inMemory(""))
	if d, err := Open(t.Context(), server.config()); err == nil {
		t.Errorf("an export opens without TLS")
		must(t, d.Close())
	}
	server.tls = client
	kit(t, server, brokenOurs("unix"))
}

// TestOurs runs the kit against the server of this module.
func TestOurs(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) { kit(t, ours(t, network, nbd.TLS{}, inMemory("")), brokenOurs(network)) })
	}
}
