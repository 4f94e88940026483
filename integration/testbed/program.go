package testbed

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/viablk/viablk/integration/program"
)

// The program with and without race detector, and of an older version of the
// protocol, built at first use.
var (
	checkedBinary = sync.OnceValues(program.Build{Package: "cmd/viablk", CGO: true, Flags: []string{"-race"}}.Path)
	plainBinary   = sync.OnceValues(program.Build{Package: "cmd/viablk"}.Path)
	olderBinary   = sync.OnceValues(program.Build{Package: "cmd/viablk", Flags: []string{"-tags", "olderwire"}}.Path)
)

// Program returns the program as this test binary was built.
func Program(t testing.TB) string {
	t.Helper()
	if !RaceDetector {
		return PlainProgram(t)
	}
	path, err := checkedBinary()
	Must(t, err)
	return path
}

// PlainProgram returns the program without race detector, for what measures
// memory and time.
func PlainProgram(t testing.TB) string {
	t.Helper()
	path, err := plainBinary()
	Must(t, err)
	return path
}

// OlderProgram returns the program as a build that speaks the version of the
// protocol before this one, without race detector.
func OlderProgram(t testing.TB) string {
	t.Helper()
	path, err := olderBinary()
	Must(t, err)
	return path
}

// ProgramForAll returns a copy of the program that every user of this host may
// start. It is gone when the test ends.
func ProgramForAll(t testing.TB) string {
	t.Helper()
	place := Folder(t)
	Must(t, os.Chmod(place, 0o755))
	text, err := os.ReadFile(Program(t))
	Must(t, err)
	path := filepath.Join(place, "viablk")
	Must(t, os.WriteFile(path, text, 0o755))
	return path
}
