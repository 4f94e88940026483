package testbed

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// SparseFile makes a file of zeroes, which is gone when the test ends.
func SparseFile(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	Must(t, os.WriteFile(path, nil, 0o600))
	Must(t, os.Truncate(path, size))
	return path
}

// Noise is random bytes.
func Noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// RandomBytes returns bytes that repeat from run to run and not within one.
func RandomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), 1, 2}).Read(b) // it never fails
	return b
}

// SparseBytes returns mostly zeroes.
func SparseBytes(n int) []byte {
	b := make([]byte, n)
	data := RandomBytes(n)
	for at := 64 << 10; at < n; at += 1 << 20 {
		copy(b[at:], data[at:min(at+10<<10, n)])
	}
	copy(b[n-512:], data[n-512:])
	return b
}

// WriteFile makes a file with this content, which is gone when the test ends.
func WriteFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	Must(t, os.WriteFile(path, data, 0o600))
	return path
}

// CheckFile compares a file with what must be in it.
func CheckFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	Must(t, err)
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
