package backend

import (
	"errors"
	"os"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// holds opens disks that another process takes over.
func holds(t *testing.T, given ...Descriptor) *Held {
	t.Helper()
	h, err := NewHeld(given)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Forget)
	return h
}

// TestHeldKeepsTheLock: from the time at which a disk is open until it is open
// in the next process, no other process gets its lock, and the disk is the
// same.
func TestHeldKeepsTheLock(t *testing.T) {
	path := newFile(t, 1<<20)
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	locked := func() {
		t.Helper()
		if d, err := Open("file:"+path, Options{}); !errors.Is(err, ErrLocked) {
			t.Fatalf("another process opens it: %v, %v", d, err)
		}
	}
	h := holds(t)
	var record [16]byte
	for _, spec := range []string{"file:" + path, "mmap:" + path, "file:" + link + "?direct=1", "file:" + path} {
		d := mustOpen(t, spec, Options{Held: h})
		locked()
		id := block.IdentityOf(d).UUID()
		if record == [16]byte{} {
			record = id
		} else if record != id {
			t.Errorf("%s: another disk", spec)
		}
		fds, err := h.Copy()
		if err != nil || len(fds) != 1 {
			t.Fatalf("%v, %v", fds, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		locked()
		if fds, err := h.Copy(); err != nil || len(fds) != 0 {
			t.Errorf("a closed disk is held: %v, %v", fds, err)
		}
		h = holds(t, fds...)
		locked()
	}
	h.Forget()
	d := mustOpen(t, "file:"+path, Options{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHeldIsTheSameFile: a descriptor of what had the name before is not used,
// nor one for a disk that only reads.
func TestHeldIsTheSameFile(t *testing.T) {
	path := newFile(t, 1<<20)
	h := holds(t)
	d := mustOpen(t, "file:"+path, Options{Held: h})
	fds, err := h.Copy()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	next := holds(t, fds...)
	d = mustOpen(t, "file:"+path, Options{Held: next})
	if size := d.Info().Size; size != 2<<20 {
		t.Errorf("the file of before, of %d bytes", size)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if fd, _ := next.claim(path + ".old"); fd < 0 {
		t.Error("the descriptor is gone")
	} else {
		_ = unix.Close(fd)
	}
}

// TestHeldRefusesNoDescriptor: what is no descriptor is an error.
func TestHeldRefusesNoDescriptor(t *testing.T) {
	if h, err := NewHeld([]Descriptor{{FD: 1 << 20}}); err == nil {
		t.Errorf("%v", h)
	}
}
