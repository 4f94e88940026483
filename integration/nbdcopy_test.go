package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// randomBytes returns bytes that repeat from run to run and not within one.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), 1, 2}).Read(b) // it never fails
	return b
}

// sparseBytes returns mostly zeroes.
func sparseBytes(n int) []byte {
	b := make([]byte, n)
	data := randomBytes(n)
	for at := 64 << 10; at < n; at += 1 << 20 {
		copy(b[at:], data[at:min(at+10<<10, n)])
	}
	copy(b[n-512:], data[n-512:])
	return b
}

func writeFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, data, 0o600))
	return path
}

// checkFile compares a file with what must be in it.
func checkFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d bytes, not %d", path, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s differs from byte %d on: %#x, not %#x", path, i, got[i], want[i])
		}
	}
}

func TestNbdcopyBothWays(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		args []string
	}{
		{"random", randomBytes(24 << 20), []string{"--connections=4", "--requests=32"}},
		{"sparse", sparseBytes(48 << 20), nil},
		{"odd size", randomBytes(5<<20 + 7*512), []string{"--request-size=4096", "--requests=64"}},
		{"large requests", randomBytes(33<<20 + 512), []string{"--request-size=33554432"}},
		{"one sector", randomBytes(512), []string{"--synchronous"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := writeFile(t, "source", c.data)
			eachWay(t, memoryDisk(fmt.Sprint(len(c.data))), func(t *testing.T, s service) {
				run(t, "nbdcopy", append(c.args, "--flush", source, s.uri)...)
				back := writeFile(t, "back", nil)
				run(t, "nbdcopy", append(c.args, s.uri, back)...)
				checkFile(t, back, c.data)
			})
		})
	}
}
