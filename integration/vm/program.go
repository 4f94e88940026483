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

// DynamicProgram is Program for a command that needs cgo and libraries, which packages
// of Config.Tools have, with build tags.
func DynamicProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(importPath))
	if err := buildDynamic(path, "build", "-tags", tags, importPath); err != nil {
		t.Fatal(err)
	}
	return path
}

// DynamicTestProgram is the same for the tests of a package.
func DynamicTestProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(importPath)+".test")
	if err := buildDynamic(path, "test", "-c", "-tags", tags, importPath); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildDynamic runs the go command with cgo. A machine is slow enough without the race
// detector.
func buildDynamic(path, verb string, args ...string) error {
	return build(path, "CGO_ENABLED=1", verb, args...)
}

// buildStatic runs the go command such that what it builds needs no library.
func buildStatic(path, verb string, args ...string) error {
	return build(path, "CGO_ENABLED=0", verb, args...)
}

// build runs the go command.
func build(path, cgo, verb string, args ...string) error {
	args = append([]string{verb, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path}, args...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), cgo, "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
