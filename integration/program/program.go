// Package program builds programs of this module for tests, once for each state
// of the sources: test binaries that run at the same time, or one after the
// other, share what the first of them built.
//
// A program lies in a folder "viablk-programs" of the user's cache folder
// and is removed once other sources have been built and it was not used for an
// hour.
package program

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Module is the import path of this module.
const Module = "github.com/viablk/viablk"

// unused is how long a program that was built of other sources stays.
const unused = time.Hour

// Build says what the go command is to build.
type Build struct {
	Package string   // its path within the module
	Test    bool     // the tests of the package, not its command
	CGO     bool     // may call C; needed for the race detector
	Flags   []string // of "go build" or "go test"
	Env     []string // more environment
}

// Path returns the file with the program, which stays as long as this process
// runs. The first caller builds; callers in other processes wait.
func (b Build) Path() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return b.pathIn(filepath.Join(cache, "viablk-programs"))
}

// pathIn is Path with a folder for all programs. A shared lock says that a
// program is in use, an exclusive one that it is made.
func (b Build) pathIn(all string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	key, err := b.key(root)
	if err != nil {
		return "", err
	}
	place := filepath.Join(all, key)
	program := filepath.Join(place, b.name())
	for {
		lock, err := acquire(place, unix.LOCK_SH)
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(program); err == nil {
			keep(lock)
			return program, nil
		}
		// Without a wait: who builds first keeps the program in use.
		err = flock(lock, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			err = nil
			time.Sleep(time.Millisecond)
		case err == nil:
			if _, there := os.Stat(program); there == nil {
				break // built while this process had no lock
			}
			if err = b.run(root, program); err == nil {
				removeUnused(all, key)
			}
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			return "", err
		}
	}
}

// keep holds a lock until the end of this process gives it back: a file that
// nothing refers to would be closed.
func keep(lock *os.File) {
	mu.Lock()
	defer mu.Unlock()
	held = append(held, lock)
}

// held are the locks that this process keeps, under mu.
var (
	mu   sync.Mutex
	held []*os.File
)

// name is that of the file.
func (b Build) name() string {
	if b.Test {
		return path.Base(b.Package) + ".test"
	}
	return path.Base(b.Package)
}

// run builds the program. A build that is interrupted leaves no program.
func (b Build) run(root, program string) error {
	args := []string{"build"}
	if b.Test {
		args = []string{"test", "-c"}
	}
	cgo := "CGO_ENABLED=0"
	if b.CGO {
		cgo = "CGO_ENABLED=1"
	}
	fresh := program + ".new"
	args = slices.Concat(args, b.Flags, []string{"-o", fresh, Module + "/" + b.Package})
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = slices.Concat(os.Environ(), []string{cgo}, b.Env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return os.Rename(fresh, program)
}

// Root returns the folder of the module: that of go.mod, at or above the
// folder of the test.
func Root() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := here; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod at or above %q", here)
		}
	}
}

// key names what is built, of which sources and how. It reads every source: the
// go command keeps a test result until a file changes that the test read, and
// tests import no command.
func (b Build) key(root string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %q %+v\n", runtime.Version(), os.Getenv("GOFLAGS"), b)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch base := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && name != root && (base[0] == '.' || base[0] == '_' || base == "bin" || base == "dist" || base == "testdata"):
			return fs.SkipDir
		case !d.Type().IsRegular() || !b.isSource(base):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		fmt.Fprintf(sum, "%s %d\n", relative, len(text))
		_, _ = sum.Write(text) // it never fails
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:16]), err
}

// isSource reports whether a file is part of what is built.
func (b Build) isSource(base string) bool {
	if strings.HasSuffix(base, "_test.go") {
		return b.Test
	}
	return slices.Contains([]string{".go", ".s", ".c", ".h", ".mod", ".sum", ".py"}, filepath.Ext(base))
}

// acquire makes a folder and locks it.
func acquire(place string, how int) (*os.File, error) {
	name := filepath.Join(place, "lock")
	for {
		if err := os.MkdirAll(place, 0o700); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed just now
		}
		if err != nil {
			return nil, err
		}
		if err := flock(lock, how); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		// The process that removed the folder meanwhile had this lock.
		mine, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if there, err := os.Stat(name); err == nil && os.SameFile(mine, there) {
			now := time.Now()
			return lock, os.Chtimes(name, now, now)
		}
		if err := lock.Close(); err != nil {
			return nil, err
		}
	}
}

// flock waits for a lock; a signal may interrupt it.
func flock(lock *os.File, how int) error {
	for {
		err := unix.Flock(int(lock.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %q: %w", lock.Name(), err)
		}
	}
}

// removeUnused removes what was built of other sources and is not in use. A
// later call removes what this one cannot.
func removeUnused(all, key string) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := filepath.Join(all, e.Name(), "lock")
		st, err := os.Stat(name)
		if err != nil || e.Name() == key || time.Since(st.ModTime()) < unused {
			continue
		}
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Join(all, e.Name()))
		}
		_ = lock.Close()
	}
}
