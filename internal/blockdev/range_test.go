package blockdev

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that is no block device refuses both, and keeps its bytes. The tests
// of target/backend and integration/vm/workload have block devices.
func TestFileRefusesRanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, do := range map[string]func(int, int64, int64) error{"discard": Discard, "zero": ZeroOut} {
		if err := do(int(f.Fd()), 0, 512); !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "bytes" {
		t.Errorf("the file has %q, %v", got, err)
	}
}
