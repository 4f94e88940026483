package program

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shim is a small program of the module.
var shim = Build{Package: "integration/suites/shim"}

// A program is built once, and again if it is to be another one.
func TestProgramIsShared(t *testing.T) {
	all := t.TempDir()
	first, err := shim.pathIn(all)
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.Stat(first)
	if err != nil || built.Mode()&0o111 == 0 {
		t.Fatalf("%v, %v", built, err)
	}
	again, err := shim.pathIn(all)
	if err != nil || again != first {
		t.Fatalf("at first %q, then %q, %v", first, again, err)
	}
	if st, err := os.Stat(again); err != nil || !os.SameFile(built, st) || !st.ModTime().Equal(built.ModTime()) {
		t.Errorf("it was built twice: %v", err)
	}
	small := shim
	small.Flags = []string{"-ldflags=-s -w"}
	other, err := small.pathIn(all)
	if err != nil || other == first {
		t.Errorf("another build is at %q too, %v", other, err)
	}
}

// A source that changes makes another program.
func TestKeyFollowsSources(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := shim.key(root)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	seen := map[string]string{write("a.go", "package a\n"): "the beginning"}
	for _, c := range []struct{ what, name, text string }{
		{"a change", "a.go", "package b\n"},
		{"an assembler file", "a_amd64.s", "TEXT\n"},
		{"a module", "go.mod", "module x\n"},
	} {
		key := write(c.name, c.text)
		if before, ok := seen[key]; ok {
			t.Errorf("after %s the key is that after %s", c.what, before)
		}
		seen[key] = c.what
	}
	if key := write("a_test.go", "package b\n"); seen[key] != "a module" {
		t.Error("a test makes another program")
	}
}

// A program of other sources goes when no test uses it, and no sooner.
func TestUnusedProgramIsRemoved(t *testing.T) {
	all := t.TempDir()
	long := time.Now().Add(-2 * unused)
	for name, old := range map[string]bool{"old": true, "old and in use": true, "new": false, "key": true} {
		lock, err := acquire(filepath.Join(all, name), unix.LOCK_SH)
		if err != nil {
			t.Fatal(err)
		}
		if old {
			if err := os.Chtimes(lock.Name(), long, long); err != nil {
				t.Fatal(err)
			}
		}
		if name == "old and in use" {
			defer lock.Close()
		} else {
			lock.Close()
		}
	}
	removeUnused(all, "key")
	for name, stays := range map[string]bool{"old": false, "old and in use": true, "new": true, "key": true} {
		if _, err := os.Stat(filepath.Join(all, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A caller that finds no program while another process has the lock, and makes
// it, gets that program. It does not wait for the end of that process.
func TestProgramOfAnotherBuilder(t *testing.T) {
	all := t.TempDir()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	key, err := shim.key(root)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := acquire(filepath.Join(all, key), unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	found := make(chan string, 1)
	go func() {
		program, err := shim.pathIn(all)
		if err != nil {
			program = err.Error()
		}
		found <- program
	}()
	time.Sleep(500 * time.Millisecond) // for the caller to find no program
	made := filepath.Join(all, key, shim.name())
	if err := os.WriteFile(made, []byte("made"), 0o700); err != nil {
		t.Fatal(err)
	}
	select {
	case program := <-found:
		if text, err := os.ReadFile(made); program != made || string(text) != "made" {
			t.Errorf("%q, %q, %v", program, text, err)
		}
	case <-time.After(time.Minute):
		t.Error("the caller still waits")
	}
}
