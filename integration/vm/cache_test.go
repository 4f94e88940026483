package vm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func init() { helpers["fill"] = fillHelper }

// fillHelper fills the cache args[0] with entries and notes each it makes in a
// file of its own in args[1]: a second maker of an entry fails.
func fillHelper(args []string) int {
	err := cache(args[0]).fill(args[2:], func(missing []string, in string) error {
		for _, name := range missing {
			note, err := os.OpenFile(filepath.Join(args[1], name), os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			_ = note.Close()
			if err := os.Mkdir(filepath.Join(in, name), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(in, name, "file"), []byte(name), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	for _, name := range args[2:] {
		text, e := os.ReadFile(filepath.Join(cache(args[0]).folder(name), "file"))
		if e != nil || string(text) != name {
			err = errors.Join(err, errors.New("entry "+name+" is not complete"), e)
		}
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		return 1
	}
	return 0
}

// Several processes fill a cache at the same time: each entry is made once, and
// no process sees a part of one.
func TestCacheIsFilledByManyProcesses(t *testing.T) {
	place, notes := t.TempDir(), t.TempDir()
	var all sync.WaitGroup
	for _, names := range []string{"a b c", "b c d", "c d a", "d a b", "a b c d", "d"} {
		cmd := exec.Command(os.Args[0], append([]string{place, notes}, strings.Fields(names)...)...)
		cmd.Env = append(os.Environ(), helperVariable+"=fill")
		all.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", cmd, err, out)
			}
		})
	}
	all.Wait()
}

// A failed entry is absent, and leaves no file.
func TestCacheAfterFailure(t *testing.T) {
	c := cache(t.TempDir())
	broken := errors.New("the network is down")
	err := c.fill([]string{"a", "b"}, func(_ []string, in string) error {
		must(t, os.Mkdir(filepath.Join(in, "a"), 0o700))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	entries, err := os.ReadDir(string(c))
	must(t, err)
	if len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("the cache holds %v, not its lock alone", entries)
	}
}

func TestCachePlace(t *testing.T) {
	place := filepath.Join(t.TempDir(), "new", "cache")
	t.Setenv(cacheVariable, place)
	c, err := openCache()
	must(t, err)
	if st, err := os.Stat(place); string(c) != place || err != nil || !st.IsDir() {
		t.Errorf("the cache is at %s (%v), want %s", c, err, place)
	}
	t.Setenv(cacheVariable, "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if c, err = openCache(); err != nil || string(c) != filepath.Join(os.Getenv("XDG_CACHE_HOME"), "viablk-vm") {
		t.Errorf("the cache is at %s (%v)", c, err)
	}
}
