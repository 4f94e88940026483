//go:build suites

package suites

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// libnbdLimit bounds a case of libnbd's suite.
const libnbdLimit = 10 * time.Minute

// libnbdFolders are those of libnbd with tests that start servers.
var libnbdFolders = []string{"tests", "interop", "info", "copy", "dump", "sh"}

// libnbdSource returns a folder with libnbd, its tools and its tests, built.
// Tests that put load on a server for ten seconds do so for two.
func libnbdSource(t *testing.T) string {
	return sources(t, "libnbd", newest, nil, func(t *testing.T, folder string) {
		loads, err := filepath.Glob(filepath.Join(folder, "tests/*-parallel*.c"))
		testbed.Must(t, err)
		for _, path := range loads {
			text, err := os.ReadFile(path)
			testbed.Must(t, err)
			shorter := regexp.MustCompile(`(?m)^#define RUN_TIME 10\b`).ReplaceAll(text, []byte("#define RUN_TIME 2"))
			testbed.Must(t, os.WriteFile(path, shorter, 0o600))
		}
		succeed(
			t, buildLimit, folder, nil, "./configure", "-q", "--disable-ocaml", "--disable-golang", "--disable-rust",
			"--disable-fuse", "--disable-ublk", "--disable-static", "--enable-python", "PYTHON=/usr/bin/python3", "CFLAGS=-O0",
		)
		jobs := fmt.Sprintf("-j%d", runtime.NumCPU())
		for _, part := range []string{"common/utils", "lib", "python", "sh", "info", "copy", "dump"} {
			succeed(t, buildLimit, folder, nil, "make", "-s", jobs, "-C", part, "all")
		}
		succeed(t, buildLimit, folder, nil, "make", "-s", "-C", "tests", "pki/stamp-pki")
		for _, part := range libnbdFolders {
			succeed(t, buildLimit, folder, nil, "make", "-s", jobs, "-C", part, "check", "TESTS=")
		}
	})
}

// libnbdNames lists the cases: those that each folder's makefile names, and the
// scripts in Python.
func libnbdNames(t *testing.T, source string) []string {
	t.Helper()
	makefile := filepath.Join(t.TempDir(), "list.mk")
	testbed.Must(t, os.WriteFile(makefile, []byte("include Makefile\n.PHONY: list\nlist: ; @echo $(TESTS)\n"), 0o600))
	var names []string
	for _, part := range libnbdFolders {
		out := succeed(t, libnbdLimit, filepath.Join(source, part), nil, "make", "-s", "-f", makefile, "list")
		for _, name := range strings.Fields(out) {
			names = append(names, part+"/"+name)
		}
	}
	scripts, err := filepath.Glob(filepath.Join(source, "python/t/*.py"))
	testbed.Must(t, err)
	for _, path := range scripts {
		names = append(names, "python/t/"+filepath.Base(path))
	}
	return append(names, "python/test-aio-connect-unix.sh")
}

// TestLibnbd runs libnbd's own tests, whose servers are targets, and initiators
// of targets.
func TestLibnbd(t *testing.T) {
	source := libnbdSource(t)
	reasons := make(map[string]string)
	for reason, names := range libnbdReasons {
		for _, name := range names {
			reasons[name] = reason
		}
	}
	names := libnbdNames(t, source)
	for name := range libnbdMixed {
		if !slices.Contains(names, name) || reasons[name] != "" {
			t.Errorf("%s is no case that runs", name)
		}
	}
	path := shims(t)
	inEachWay(t, "libnbd", names, reasons, func(t *testing.T, w way, name string) {
		part, test, _ := strings.Cut(name, "/")
		command := []string{"./" + test}
		if strings.HasSuffix(test, ".py") {
			command = []string{"/usr/bin/python3", test}
		}
		n := newNotes(t, path, w)
		env := append(n.environment(t), "srcdir=.")
		out, code := run(t, host(t), libnbdLimit, filepath.Join(source, part), env, "../run", command...)
		if code == 77 {
			t.Errorf("the case was skipped")
		} else if code != 0 {
			t.Errorf("exit code %d", code)
		}
		if testbed.IsDisaster(out) {
			t.Errorf("a server died")
		}
		n.check(t, libnbdMixed[name])
		if t.Failed() {
			t.Logf("the servers that it started:\n%s\nthe end of its output:\n%s", n.text, tail(out))
		}
	})
}
