//go:build suites

package suites

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// shims makes a folder for the beginning of PATH, with the names of servers.
// They are scripts: libnbd's tests run with Go's debugging options for other
// versions of Go, with which no program in Go starts.
func shims(t *testing.T) string {
	t.Helper()
	place := t.TempDir()
	shimProgram, err := shim()
	testbed.Must(t, err)
	for _, name := range []string{"nbdkit", "qemu-nbd", "nbd-server"} {
		script := "#!/bin/sh\nunset GODEBUG GOTRACEBACK\nexec " + shimProgram + " " + name + ` "$@"` + "\n"
		testbed.Must(t, os.WriteFile(filepath.Join(place, name), []byte(script), 0o755))
	}
	return place
}

// notes are what the shims note of the servers that a case starts.
type notes struct {
	path   string // of the shims
	folder string
	chain  bool
	text   string
}

// newNotes returns a place for notes of servers that serve in a way.
func newNotes(t *testing.T, path string, w way) *notes {
	return &notes{path: path, folder: t.TempDir(), chain: w.name == "chain"}
}

// environment is what a case gets for the shims.
func (n *notes) environment(t *testing.T) []string {
	env := []string{
		"PATH=" + n.path + ":" + testbed.ToolPath,
		"VIABLK_SHIM_PROGRAM=" + fast(t), "VIABLK_SHIM_FOLDER=" + n.folder,
	}
	if n.chain {
		env = append(env, "VIABLK_SHIM_CHAIN=1")
	}
	return env
}

// check fails the test if viablk did not start, or if another server did and is
// not the one that mixed is about: it holds the beginning of what the shims say
// of it.
func (n *notes) check(t *testing.T, mixed string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.folder, "starts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	n.text = string(text)
	ours, others := 0, 0
	for line := range strings.Lines(n.text) {
		who, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if who == "ours" {
			ours++
		} else if others++; mixed == "" || !strings.Contains(what, mixed) {
			t.Errorf("it starts a server that is not viablk: %s", what)
		}
	}
	if ours == 0 {
		t.Error("it does not start viablk")
	}
	if others == 0 && mixed != "" {
		t.Errorf("it starts no server that is %q", mixed)
	}
}
