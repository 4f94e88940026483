package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// modulePath is the import path of this module.
const modulePath = "github.com/viablk/viablk"

// guestProgram is the guest's first process, built at first use.
var guestProgram = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "viablk-vm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "guest")
	if err := buildStatic(path, "build", modulePath+"/integration/vm/guest"); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// Program builds a command of this module, by its import path, so that it runs in
// a machine, and returns the path of the file.
func Program(t testing.TB, importPath string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(importPath))
	if err := buildStatic(path, "build", importPath); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProgram is Program for the tests of a package, with build tags.
func TestProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(importPath)+".test")
	if err := buildStatic(path, "test", "-c", "-tags", tags, importPath); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildStatic runs the go command such that what it builds needs no library.
func buildStatic(path, verb string, args ...string) error {
	args = append([]string{verb, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path}, args...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
