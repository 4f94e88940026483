package backend

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// kill ends a file as a killed process does: nothing is made durable, and the
// lock is given up.
func kill(t testing.TB, d block.Device) {
	t.Helper()
	f := d.(*file)
	f.executor.Close()
	if err := unix.Close(f.fd); err != nil {
		t.Fatal(err)
	}
	f.cow.close()
	f.fd = -1
}

func openIdentified(t testing.TB, path string, k kernel) block.Device {
	t.Helper()
	d, err := openFile(path, fileOptions{lock: true, identity: true}, k)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFailedFlushIsKept: after a failed flush, or a failed write that was to be
// durable, the disk has another write verifier when the request is answered,
// and keeps it when its process ends.
func TestFailedFlushIsKept(t *testing.T) {
	for name, fail := range map[string]func(*block.Disk) error{
		"flush": func(d *block.Disk) error { return d.Sync() },
		"fua":   func(d *block.Disk) error { _, err := d.WriteAtFUA(make([]byte, 4096), 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			k := &broken{}
			d := openIdentified(t, newFile(t, 1<<20), k)
			path := d.(*file).path
			was := block.IdentityOf(d).Verifier()
			k.onSync = func() (error, bool) { return unix.EIO, true }
			k.onWrite = func(_ int, _ []byte, _ int64, dsync bool) (int, error, bool) { return 0, unix.EIO, dsync }
			view := viewOf(t, d)
			for range 2 {
				if err := fail(view); block.Errno(err) != syscall.EIO {
					t.Fatalf("%v, want EIO", err)
				}
			}
			now := block.IdentityOf(d).Verifier()
			if now == was {
				t.Error("the verifier is the same after a failed flush")
			}
			kill(t, d)
			again := openIdentified(t, path, linux{})
			defer again.Close()
			if got := block.IdentityOf(again).Verifier(); got != now {
				t.Error("another process does not know of the loss, or counts it again")
			}
			if err := fail(viewOf(t, again)); block.Errno(err) != syscall.EIO {
				t.Errorf("another process: %v, want EIO", err)
			}
		})
	}
}

// TestFailedCloseIsKept: a disk that cannot be made durable when its process
// ends has another write verifier in the next one.
func TestFailedCloseIsKept(t *testing.T) {
	k := &broken{onSync: func() (error, bool) { return unix.EIO, true }}
	d := openIdentified(t, newFile(t, 1<<20), k)
	was, path := block.IdentityOf(d).Verifier(), d.(*file).path
	if err := d.Close(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("close: %v", err)
	}
	again := openIdentified(t, path, linux{})
	defer again.Close()
	if block.IdentityOf(again).Verifier() == was {
		t.Error("the verifier is the same after a failed close")
	}
	if err := viewOf(t, again).Sync(); block.Errno(err) != syscall.EIO {
		t.Errorf("a flush after a failed close: %v", err)
	}
}

// touching is a kernel that sets the time of modification when it is asked for
// holes, as ext4 and tmpfs do, and whose clock runs fast.
type touching struct {
	linux
	path string
	now  *time.Time
}

func (k touching) fallocate(fd int, mode uint32, off, length int64) error {
	*k.now = k.now.Add(time.Second)
	if err := os.Chtimes(k.path, *k.now, *k.now); err != nil {
		return err
	}
	return k.linux.fallocate(fd, mode, off, length)
}

// TestPlannedRestart: a disk that was closed and opened again has the same
// writer: the target itself is not taken for another program that wrote.
func TestPlannedRestart(t *testing.T) {
	now := time.Now()
	k := touching{path: newFile(t, 1<<20), now: &now}
	me := [16]byte{'m', 'e'}
	for i := range 3 {
		d := openIdentified(t, k.path, k)
		if w := block.IdentityOf(d).Writer(); i > 0 && w.ID != me {
			t.Errorf("opened again, the disk has the writer %x", w.ID)
		}
		if _, err := block.IdentityOf(d).SetWriter(me); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdentityGivenUp: identity=0 leaves no record, and no identity.
func TestIdentityGivenUp(t *testing.T) {
	path := newFile(t, 1<<20)
	for _, scheme := range []string{"file:", "mmap:"} {
		d := mustOpen(t, scheme+path+"?identity=0", Options{})
		if id := block.IdentityOf(d); id != nil {
			t.Errorf("%s: identity %v", scheme, id)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Getxattr(path, "user.viablk.identity", nil); err != unix.ENODATA {
		t.Errorf("the file has a record: %v", err)
	}
}

// TestOpenChangesNothing: a disk that is opened and closed, and written to in
// between, was changed by no other program.
func TestOpenChangesNothing(t *testing.T) {
	path := newFile(t, 1<<20)
	var before block.Writer
	for round := range 3 {
		d := openIdentified(t, path, linux{})
		id := block.IdentityOf(d)
		if round > 0 && id.Writer() != before {
			t.Errorf("round %d: the writer is %v and was %v", round, id.Writer(), before)
		}
		view := viewOf(t, d)
		if _, err := view.WriteAt(make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
		var err error
		if before, err = id.SetWriter([16]byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(view.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // file systems count time in ticks
	}
}

// TestVerifierOfACache: a disk whose cache was lost has another write verifier
// and the UUID that it had, also in the same process.
func TestVerifierOfACache(t *testing.T) {
	path := newFile(t, 1<<20)
	var verifiers []uint64
	var uuids [][16]byte
	for range 2 {
		d := mustOpen(t, "volatile:file:"+path, Options{})
		id := block.IdentityOf(d)
		verifiers, uuids = append(verifiers, id.Verifier()), append(uuids, id.UUID())
		if id.Verifier() != block.IdentityOf(d).Verifier() {
			t.Error("the verifier of an open disk changes")
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if verifiers[0] == verifiers[1] || uuids[0] != uuids[1] {
		t.Errorf("verifiers %x, UUIDs %x", verifiers, uuids)
	}
}
