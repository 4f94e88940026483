// The race detector takes seconds to look at all of a disk, as these tests do.

//go:build !race

package backend

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// relieved is a kernel that frees room as soon as a call is answered that there
// is none.
type relieved struct {
	linux
	free atomic.Pointer[func()]
}

func (r *relieved) met(err error) {
	if err == unix.ENOSPC {
		if free := r.free.Swap(nil); free != nil {
			(*free)()
		}
	}
}

func (r *relieved) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	n, err := r.linux.pwrite(fd, p, off, dsync)
	r.met(err)
	return n, err
}

func (r *relieved) fallocate(fd int, mode uint32, off, length int64) error {
	err := r.linux.fallocate(fd, mode, off, length)
	r.met(err)
	return err
}

// fullDisk is a sparse disk on a small file system, with what it holds.
type fullDisk struct {
	*block.Disk
	t      *testing.T
	folder string
	kernel *relieved
	model  []byte
}

// openOnSmallExt4 opens a disk on a file system that is smaller.
func openOnSmallExt4(t *testing.T, spec string) *fullDisk {
	t.Helper()
	d := &fullDisk{t: t, folder: smallExt4(t), kernel: new(relieved), model: make([]byte, 2*diskSize)}
	path := filepath.Join(d.folder, "disk")
	if spec == "cow:" {
		spec += newFile(t, 2*diskSize) + "," + path + "?create=1"
	} else {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 2*diskSize)); err != nil {
			t.Fatal(err)
		}
		spec = spec[:5] + path + spec[5:]
	}
	device := mustOpen(t, spec, Options{StateFolder: t.TempDir()})
	switch device := device.(type) {
	case *file:
		device.kernel = d.kernel
	case *mapped:
		device.kernel = d.kernel
	}
	d.Disk = viewOf(t, device)
	return d
}

// check compares what the disk holds.
func (d *fullDisk) check() {
	d.t.Helper()
	got := make([]byte, len(d.model))
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, d.model) {
		d.t.Errorf("the disk holds something else than was acknowledged: %v", err)
	}
}

// modify runs everything that changes data, at off, and wants an errno of those
// that need room.
func (d *fullDisk) modify(off int64, want unix.Errno) {
	d.t.Helper()
	const n = 8192
	p := aligned(d.t, n)
	for i, write := range []func([]byte, int64) (int, error){d.WriteAt, d.WriteAtFUA, d.WriteAt} {
		at := off + int64(i)<<20
		copy(p, fill(n, byte(i+1)))
		_, err := write(p, at)
		wantErrno(d.t, "write", err, want)
		if err == nil {
			copy(d.model[at:], p)
		}
		if err := d.Sync(); err != nil {
			d.t.Errorf("flush: %v", err)
		}
	}
	wantErrno(d.t, "zeroes without a hole", d.WriteZeroes(off+3<<20, n, block.NoHole), want)
	wantErrno(d.t, "durable zeroes without a hole", d.WriteZeroes(off+3<<20+4*n, n, block.NoHole|block.FUA), want)
	for _, flags := range []block.Flags{0, block.FUA} {
		if err := errors.Join(d.Trim(off+4<<20, n), d.WriteZeroes(off+4<<20+2*n, n, flags)); err != nil {
			d.t.Errorf("trim and zeroes with a hole: %v", err)
		}
	}
	if err := d.Sync(); err != nil {
		d.t.Errorf("flush: %v", err)
	}
}

// A file system without room answers the write, not the flush: when there is
// room again, the disk works.
func TestDiskOfAFullFileSystem(t *testing.T) {
	for _, spec := range []string{
		"file:?io=threads", "file:?io=uring", "file:?io=threads&direct=1", "file:?io=uring&direct=1", "mmap:", "cow:",
	} {
		t.Run(spec, func(t *testing.T) {
			d := openOnSmallExt4(t, spec)
			d.modify(0, 0)
			free := ballast(t, d.folder)
			d.modify(16<<20, unix.ENOSPC)
			d.modify(0, 0) // it has its blocks
			d.check()
			// There is room again while a durable write is answered.
			d.kernel.free.Store(&free)
			p := aligned(t, 8192)
			copy(p, fill(len(p), 9))
			if _, err := d.WriteAtFUA(p, 32<<20); err == nil {
				copy(d.model[32<<20:], p)
			} else {
				wantErrno(t, "durable write while room is made", err, unix.ENOSPC)
			}
			if d.kernel.free.Load() != nil {
				t.Fatal("no call met a full file system")
			}
			d.modify(16<<20, 0)
			d.modify(40<<20, 0)
			d.check()
		})
	}
}

// Trimming a disk gives its room back, and a file system that fills up under
// concurrent writers leaves no disk broken.
func TestFileSystemThatFillsUp(t *testing.T) {
	d := openOnSmallExt4(t, "file:")
	defer ballast(t, d.folder)()
	// The disk itself has the last room.
	if err := os.Truncate(filepath.Join(d.folder, "ballast"), 8<<20); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		var full atomic.Int64
		var writers sync.WaitGroup
		for i := range int64(4) {
			p, at := aligned(t, 16<<10), i*diskSize/2
			writers.Go(func() {
				for off := at; off < at+diskSize/2; off += 64 << 10 {
					copy(p, fill(len(p), byte(round+1)))
					write := d.WriteAt
					if off>>16%3 == 0 {
						write = d.WriteAtFUA
					}
					_, err := write(p, off)
					switch {
					case err == nil:
						copy(d.model[off:], p)
					case block.Errno(err) == unix.ENOSPC:
						full.Add(1)
					default:
						t.Errorf("write at %d: %v", off, err)
					}
				}
			})
		}
		writers.Wait()
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		d.check()
		if full.Load() == 0 {
			t.Errorf("round %d: every write found room", round)
		}
		if err := d.Trim(0, int64(len(d.model))); err != nil {
			t.Fatal(err)
		}
		clear(d.model)
		d.check()
	}
}

// An overlay without a block of its own on a full file system: each write that
// needs room for the map is refused, and the disk stays what it was.
func TestNewOverlayOfAFullFileSystem(t *testing.T) {
	d := openOnSmallExt4(t, "cow:")
	free := ballast(t, d.folder)
	p := fill(8192, 1)
	for off := int64(0); off < diskSize; off += 8 << 20 {
		_, err := d.WriteAt(p, off+512)
		wantErrno(t, "write", err, unix.ENOSPC)
		_, err = d.WriteAtFUA(p, off)
		wantErrno(t, "durable write", err, unix.ENOSPC)
	}
	if err := d.Sync(); err != nil {
		t.Errorf("flush: %v", err)
	}
	d.check()
	free()
	d.modify(0, 0)
	d.check()
}

// The file system of checksums is full: a write of a region without a mark is
// refused, every other one and each flush succeeds.
func TestChecksumsOnAFullFileSystem(t *testing.T) {
	folder := smallExt4(t)
	d := mustOpen(t, "crc:file:"+newFile(t, diskSize)+","+filepath.Join(folder, "sums"), Options{})
	disk := viewOf(t, d)
	write := func(off int64, want unix.Errno) {
		t.Helper()
		_, err := disk.WriteAt(fill(8192, byte(off>>20)), off)
		wantErrno(t, "write", err, want)
		if err := disk.Sync(); err != nil {
			t.Errorf("flush: %v", err)
		}
	}
	write(0, 0)
	free := ballast(t, folder)
	write(40<<20, unix.ENOSPC)
	wantErrno(t, "zeroes", disk.WriteZeroes(40<<20, 8192, 0), unix.ENOSPC)
	write(1<<20, 0)
	free()
	write(40<<20, 0)
	p := make([]byte, 8192)
	if _, err := disk.ReadAt(p, 40<<20); err != nil || !bytes.Equal(p, fill(8192, 40)) {
		t.Errorf("read: %v", err)
	}
}
