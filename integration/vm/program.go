package vm

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/viablk/viablk/integration/program"
)

// modulePath is the import path of this module.
const modulePath = program.Module

// guestProgram is the guest's first process, built at first use.
var guestProgram = sync.OnceValues(func() ([]byte, error) {
	path, err := forMachine(modulePath + "/integration/vm/guest").Path()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// Program builds a command of this module, by its import path, so that it runs
// in a machine, and returns the path of the file. It needs no library.
func Program(t testing.TB, importPath string) string {
	t.Helper()
	return built(t, forMachine(importPath))
}

// TestProgram is Program for the tests of a package, with build tags.
func TestProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	b := forMachine(importPath, "-tags", tags)
	b.Test = true
	return built(t, b)
}

// DynamicProgram is Program for a command that needs cgo and libraries, which
// packages of Config.Tools have, with build tags.
func DynamicProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	b := forMachine(importPath, "-tags", tags)
	b.CGO = true
	return built(t, b)
}

// DynamicTestProgram is the same for the tests of a package.
func DynamicTestProgram(t testing.TB, importPath, tags string) string {
	t.Helper()
	b := forMachine(importPath, "-tags", tags)
	b.Test, b.CGO = true, true
	return built(t, b)
}

// forMachine builds a package for a machine, which is slow enough without the
// race detector.
func forMachine(importPath string, flags ...string) program.Build {
	return program.Build{
		Package: strings.TrimPrefix(importPath, modulePath+"/"),
		Flags:   append([]string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, flags...),
		Env:     []string{"GOOS=linux", "GOARCH=amd64"},
	}
}

func built(t testing.TB, b program.Build) string {
	t.Helper()
	path, err := b.Path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
