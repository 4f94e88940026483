package backend

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// newBase makes a file of size bytes in a folder of its own, with random data
// in half of each MiB, and returns its path.
func newBase(t testing.TB, size int64) string {
	t.Helper()
	path := newFile(t, size)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{byte(size)})
	half := make([]byte, 1<<19)
	for off := int64(0); off < min(size, 16<<20); off += 1 << 20 {
		_, _ = random.Read(half) // never fails
		if _, err := f.WriteAt(half[:min(int64(len(half)), size-off)], off); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// onOverlay returns an opener of wrappers around a new overlay over a new base.
func onOverlay(wrappers string) func(testing.TB) block.Device {
	return func(t testing.TB) block.Device {
		t.Helper()
		base := newBase(t, diskSize)
		return mustOpen(t, fmt.Sprintf("%scow:%s,%s?create=1", wrappers, base, filepath.Join(t.TempDir(), "overlay")), Options{})
	}
}

func TestOverlay(t *testing.T) {
	backendtest.Run(t, onOverlay(""), backendtest.Options{Broken: onOverlay("fault:write=EIO:")})
}

func TestReadOnlyOverlay(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) block.Device {
		spec := fmt.Sprintf("cow:%s,%s", newBase(t, diskSize), filepath.Join(t.TempDir(), "overlay"))
		if err := mustOpen(t, spec+"?create=1", Options{}).Close(); err != nil {
			t.Fatal(err)
		}
		return mustOpen(t, spec, Options{ReadOnly: true})
	}, backendtest.Options{})
}

// readAll returns what a disk holds.
func readAll(t testing.TB, d block.Device) []byte {
	t.Helper()
	b := make([]byte, d.Info().Size)
	disk, err := block.NewDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if _, err := disk.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// Random changes of any alignment over a base, against a plain model, with the
// overlay opened again now and then, closed or killed. The base stays.
func TestOverlayAgainstModel(t *testing.T) {
	const size = 3<<20 + 512 // its last block is a part of one
	base := newBase(t, size)
	model, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	original := bytes.Clone(model)
	spec := fmt.Sprintf("cow:%s,%s?create=1", base, filepath.Join(t.TempDir(), "overlay"))
	random := rand.New(rand.NewPCG(1, 2))
	d := mustOpen(t, spec, Options{})
	for round := range 60 {
		disk, err := block.NewDisk(d)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			if err := change(random, disk, model, 1); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, size)
		if _, err := disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, model) {
			t.Fatalf("round %d: the disk differs at %d, %v", round, firstDifference(got, model), err)
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		if round%3 == 0 {
			kill(t, d.(*file))
		} else if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = mustOpen(t, spec, Options{})
		if got := readAll(t, d); !bytes.Equal(got, model) {
			t.Fatalf("round %d: the disk opened again differs at %d", round, firstDifference(got, model))
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(base); err != nil || !bytes.Equal(now, original) {
		t.Errorf("the base was written to, %v", err)
	}
}

// change makes a random change of a disk and its model, aligned to grain bytes.
func change(random *rand.Rand, disk *block.Disk, model []byte, grain int64) error {
	size := int64(len(model)) / grain
	off := random.Int64N(size)
	n := 1 + random.Int64N(min(size-off, (1+random.Int64N(200<<10))/grain+1))
	off, n = off*grain, n*grain
	var err error
	switch random.IntN(4) {
	case 0:
		if err = disk.WriteZeroes(off, n, block.Flags(random.IntN(4))&(block.FUA|block.NoHole)); err == nil {
			clear(model[off : off+n])
		}
	case 1:
		if err = disk.Trim(off, n); err == nil {
			_, err = disk.ReadAt(model[off:off+n], off)
		}
	default:
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		if random.IntN(4) == 0 {
			_, err = disk.WriteAtFUA(p, off)
		} else {
			_, err = disk.WriteAt(p, off)
		}
		if err == nil {
			copy(model[off:], p)
		}
	}
	return err
}

// firstDifference returns where two disks differ first.
func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// lossy is a kernel whose fdatasync fails, and loses data, while it is told to.
type lossy struct {
	linux
	failing atomic.Bool
}

func (l *lossy) fdatasync(fd int) error {
	if l.failing.Load() {
		return unix.EIO
	}
	return l.linux.fdatasync(fd)
}

// A flush of an overlay fails: the next process finds the last flush, and
// nothing of what the page cache may have lost.
func TestOverlayAfterFailedFlush(t *testing.T) {
	base := newBase(t, 1<<20)
	want, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	k := new(lossy)
	open := func() block.Device {
		d, err := openCow(base, filepath.Join(filepath.Dir(base), "overlay"), true, fileOptions{lock: true, identity: true}, k)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	verifier := block.IdentityOf(d).Verifier()
	disk := viewOf(t, d)
	if _, err := disk.WriteAtFUA(fill(8192, 1), 0); err != nil {
		t.Fatal(err)
	}
	copy(want, fill(8192, 1))
	if _, err := disk.WriteAt(fill(8192, 2), 65536); err != nil {
		t.Fatal(err)
	}
	k.failing.Store(true)
	wantErrno(t, "flush", disk.Sync(), unix.EIO)
	k.failing.Store(false)
	wantErrno(t, "the next flush", disk.Sync(), unix.EIO)
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	kill(t, d)
	d = open()
	if got := readAll(t, d); !bytes.Equal(got, want) {
		t.Errorf("the disk differs at %d", firstDifference(got, want))
	}
	if block.IdentityOf(d).Verifier() == verifier {
		t.Error("the loss is not in the verifier")
	}
	wantErrno(t, "a flush that no person expects", viewOf(t, d).Sync(), unix.EIO)
	if err := d.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("closed with %v", err)
	}
	acceptLosses(t, filepath.Join(filepath.Dir(base), "overlay"))
	d = open()
	defer d.Close()
	if err := viewOf(t, d).Sync(); err != nil {
		t.Error(err)
	}
}

// acceptLosses is what a person does about a disk whose flush failed.
func acceptLosses(t testing.TB, path string) {
	t.Helper()
	l, err := Lock(path, Options{})
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if i, err := identity.Inspect(l.Identity()); err != nil || !i.Failed {
		return // a disk without a record has nothing to accept
	}
	if _, err := identity.Accept(l.Identity()); err != nil {
		t.Fatal(err)
	}
}
