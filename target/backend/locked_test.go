package backend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/target/identity"
)

// TestLock: what a target serves is refused, unless both only read.
func TestLock(t *testing.T) {
	path := newFile(t, 1<<20)
	try := func(spec string, readOnly bool, want error) {
		t.Helper()
		l, err := Lock(spec, Options{ReadOnly: readOnly})
		if !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("lock %s, read-only %v: %v, want %v", spec, readOnly, err, want)
		}
		if err == nil {
			l.Close()
		}
	}
	writer := mustOpen(t, "file:"+path, Options{})
	try(path, true, ErrLocked)
	try("file:"+path+"?readonly=1", false, ErrLocked)
	try("file:"+path+"?lock=0", false, nil)
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	reader := mustOpen(t, "file:"+path+"?readonly=1", Options{})
	try(path, true, nil)
	try(path, false, ErrLocked)
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	try("mmap:"+path, false, nil)
}

// TestLockKeepsTargetsOut: no target gets a disk while it is locked, and the
// identity is that of the disk that was served.
func TestLockKeepsTargetsOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a disk?100%")
	if err := os.Rename(newFile(t, 1<<20), path); err != nil {
		t.Fatal(err)
	}
	l, err := Lock(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Inspect(l.Identity()); !errors.Is(err, identity.ErrNoRecord) {
		t.Errorf("inspect: %v", err)
	}
	made, err := identity.Renew(l.Identity(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFile(path, fileOptions{lock: true, identity: true}, linux{}); !errors.Is(err, ErrLocked) {
		t.Errorf("open a locked disk: %v", err)
	}
	l.Close()
	d := openIdentified(t, path, linux{})
	defer d.Close()
	if got := d.(*file).Identity().UUID(); got != made.UUID {
		t.Errorf("the disk has UUID %x, not %x", got, made.UUID)
	}
}

// TestLockRefusals: what has no identity, and what is not there.
func TestLockRefusals(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	for spec, want := range map[string]error{
		"memory:1MiB":                      ErrUsage,
		"fault:read=eio:file:/x":           ErrUsage,
		"file:" + absent + "?identity=0":   ErrUsage,
		"file:" + absent + "?create=1MiB":  fs.ErrNotExist,
		absent:                             fs.ErrNotExist,
		filepath.Dir(absent):               ErrUsage,
		"file:" + absent + "?nosuchoption": ErrUsage,
	} {
		if _, err := Lock(spec, Options{}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", spec, err, want)
		}
	}
	if _, err := os.Stat(absent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
}
