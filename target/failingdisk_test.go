package target_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
)

// failingDisk is a block device that can lose its second half: a loop device
// whose image is cut. Reads of what is gone fail with EIO, as those of bad
// sectors.
type failingDisk struct {
	t       testing.TB
	path    string // of the device
	image   string
	content []byte
}

func newFailingDisk(t testing.TB) *failingDisk {
	t.Helper()
	d := &failingDisk{t: t, image: filepath.Join(t.TempDir(), "image"), content: make([]byte, mappedSize)}
	rng := rand.New(rand.NewPCG(8, 9))
	for i := range d.content {
		d.content[i] = byte(rng.Uint32())
	}
	must(t, os.WriteFile(d.image, d.content, 0o600))
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("disks that fail are made by root on kernels with loop devices: %v", err)
	}
	defer control.Close()
	image, err := os.OpenFile(d.image, os.O_RDWR, 0)
	must(t, err)
	defer image.Close()
	for range 10 { // another process may use the free one first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		must(t, err)
		d.path = fmt.Sprintf("/dev/loop%d", n)
		device, err := os.OpenFile(d.path, os.O_RDWR, 0)
		must(t, err)
		err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
		if err == unix.EBUSY {
			device.Close()
			continue
		}
		must(t, err)
		t.Cleanup(func() {
			must(t, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
			must(t, device.Close())
		})
		return d
	}
	t.Fatal("no loop device is free")
	return nil
}

// fail makes the second half unreadable, and drops it from the page cache.
// mapped is every mapping of the device in this process.
func (d *failingDisk) fail(mapped []byte) {
	must(d.t, os.Truncate(d.image, mappedSize/2))
	must(d.t, unix.Madvise(mapped, unix.MADV_DONTNEED)) // pages in use are not evicted
	device, err := os.Open(d.path)
	must(d.t, err)
	defer device.Close()
	must(d.t, unix.Fadvise(int(device.Fd()), 0, 0, unix.FADV_DONTNEED))
	var buf [4096]byte
	if _, err := unix.Pread(int(device.Fd()), buf[:], mappedSize/2); err != unix.EIO {
		d.t.Errorf("read of a failing disk: %v", err)
	}
}

// A disk that fails: what it has lost is EIO, what is left is read, and the
// connection goes on.
func TestReadsOfAFailingDisk(t *testing.T) {
	d := newFailingDisk(t)
	e := target.Export{Name: "disk", Device: openDevice(t, "mmap:"+d.path+"?identity=0")}
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e)
	p := r.reader(t, "disk")
	const n = 64 << 10
	check := func(off int, want wire.Status) {
		t.Helper()
		got, err := p.read(uint64(off), n, want)
		must(t, err)
		if want == wire.StatusOK && !bytes.Equal(got, d.content[off:off+n]) {
			t.Errorf("other data at %d", off)
		}
	}
	for range 2 { // from the disk, and from the page cache
		check(0, wire.StatusOK)
		check(mappedSize-n, wire.StatusOK)
	}
	s := r.choices(t, func(s regcache.ChoiceStats) bool { return s.BytesCopied+s.BytesZeroCopied == 4*n })
	if s.BytesZeroCopied < 2*n {
		t.Errorf("%+v", s)
	}
	d.fail(e.Device.(block.FileMapped).Mapping())
	for range 2 {
		check(mappedSize-n, wire.StatusIO)
		check(0, wire.StatusOK)
		check(mappedSize/2, wire.StatusIO)
		check(mappedSize/2-n, wire.StatusOK)
	}
}

// A disk that fails between the check and the copy costs the connection that
// reads it. Every other one goes on, and the next read has the errno.
func TestDiskThatFailsUnderACopy(t *testing.T) {
	d := newFailingDisk(t)
	var now atomic.Bool
	w := &failsAfterCheck{FileMapped: openDevice(t, "mmap:"+d.path+"?identity=0").(block.FileMapped), disk: d, now: &now}
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, target.Export{Name: "disk", Device: w}, disk(t, "other"))
	other := r.healthy(t, "other")
	p := r.reader(t, "disk")
	const n = 64 << 10
	for range 2 {
		_, err := p.read(mappedSize-n, n, wire.StatusOK)
		must(t, err)
	}
	now.Store(true)
	if _, err := p.read(mappedSize-n, n, wire.StatusOK); err == nil {
		t.Fatal("a read of what is lost succeeds")
	}
	now.Store(false)
	other.progresses()
	waitFor(t, "the reason in the log", func() bool { return strings.Contains(r.log.String(), "truncated, or failed") })
	p.s.control.c.Disconnect()
	waitFor(t, "the end of the session", func() bool { return r.server.Status().Sessions == 1 })
	next := r.reader(t, "disk")
	_, err := next.read(mappedSize-n, n, wire.StatusIO)
	must(t, err)
	got, err := next.read(0, n, wire.StatusOK)
	must(t, err)
	if !bytes.Equal(got, d.content[:n]) {
		t.Error("other data")
	}
}

// failsAfterCheck is a mapped disk that fails after the check of which pages
// are resident.
type failsAfterCheck struct {
	block.FileMapped
	disk *failingDisk
	now  *atomic.Bool
}

func (w *failsAfterCheck) Resident(off, n int64) bool {
	ok := w.FileMapped.Resident(off, n)
	if w.now.Load() {
		w.disk.fail(w.Mapping())
	}
	return ok
}
