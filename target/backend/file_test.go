package backend

import (
	"bytes"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// broken is a kernel whose calls a test replaces; nil functions are those of
// linux.
type broken struct {
	linux
	onRead      func(fd int, p []byte, off int64, noWait bool) (int, error, bool)
	onWrite     func(fd int, p []byte, off int64, dsync bool) (int, error, bool)
	onSync      func() (error, bool)
	onAllocate  func(mode uint32) (error, bool)
	onSeek      func(off int64, whence int) (int64, error)
	syncs       int
	writeBacks  int
	mu          sync.Mutex
	allocations []uint32
}

func (b *broken) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onRead != nil {
		if n, err, done := b.onRead(fd, p, off, noWait); done {
			return n, err
		}
	}
	return b.linux.pread(fd, p, off, noWait)
}

func (b *broken) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onWrite != nil {
		if n, err, done := b.onWrite(fd, p, off, dsync); done {
			return n, err
		}
	}
	return b.linux.pwrite(fd, p, off, dsync)
}

func (b *broken) fdatasync(fd int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.syncs++
	if b.onSync != nil {
		if err, done := b.onSync(); done {
			return err
		}
	}
	return b.linux.fdatasync(fd)
}

func (b *broken) writeBack(int) error {
	b.writeBacks++
	return syscall.EIO
}

func (b *broken) fallocate(fd int, mode uint32, off, length int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allocations = append(b.allocations, mode)
	if b.onAllocate != nil {
		if err, done := b.onAllocate(mode); done {
			return err
		}
	}
	return b.linux.fallocate(fd, mode, off, length)
}

func (b *broken) seek(fd int, off int64, whence int) (int64, error) {
	if b.onSeek != nil {
		return b.onSeek(off, whence)
	}
	return b.linux.seek(fd, off, whence)
}

// viewOf returns a synchronous view of a device; both are closed with the test.
func viewOf(t testing.TB, d block.Device) *block.Disk {
	t.Helper()
	disk, err := block.NewDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
		_ = d.Close() // says again what the test has caused
	})
	return disk
}

// openBroken opens a new file of 1 MiB by way of k.
func openBroken(t testing.TB, k *broken) (*block.Disk, string) {
	t.Helper()
	path := newFile(t, 1<<20)
	d, err := openFile(path, fileOptions{lock: true}, k)
	if err != nil {
		t.Fatal(err)
	}
	return viewOf(t, d), path
}

// TestFileWritesBack: a failure to write back is the next flush's to tell.
func TestFileWritesBack(t *testing.T) {
	k := new(broken)
	d, err := openFile(newFile(t, 1<<20), fileOptions{lock: true}, k)
	if err != nil {
		t.Fatal(err)
	}
	disk := viewOf(t, d)
	d.(block.WriteBacker).WriteBack()
	if k.writeBacks != 1 || k.syncs != 0 {
		t.Errorf("%d calls to write back and %d flushes, not 1 and 0", k.writeBacks, k.syncs)
	}
	if err := disk.Sync(); err != nil || k.syncs != 1 {
		t.Errorf("flush: %v, %d calls", err, k.syncs)
	}
}

func fill(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if got := block.Errno(err); got != want {
		t.Errorf("%s: %v, want errno %d (%v)", what, err, want, want)
	}
}

func TestShortTransfersAreCompleted(t *testing.T) {
	k := &broken{}
	calls := 0
	interrupt := func() (error, bool) {
		calls++
		switch calls % 4 {
		case 1:
			return syscall.EINTR, true
		case 2:
			return syscall.EAGAIN, true
		}
		return nil, false
	}
	k.onRead = func(fd int, p []byte, off int64, noWait bool) (int, error, bool) {
		if err, hit := interrupt(); hit {
			return 0, err, true
		}
		n, err := k.linux.pread(fd, p[:min(len(p), 777)], off, false)
		return n, err, true
	}
	k.onWrite = func(fd int, p []byte, off int64, dsync bool) (int, error, bool) {
		if err, hit := interrupt(); hit {
			return 0, err, true
		}
		n, err := k.linux.pwrite(fd, p[:min(len(p), 555)], off, dsync)
		return n, err, true
	}
	disk, _ := openBroken(t, k)
	for _, write := range []func([]byte, int64) (int, error){disk.WriteAt, disk.WriteAtFUA} {
		data := fill(10000, byte(calls))
		if _, err := write(data, 3000); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := disk.ReadAt(got, 3000); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read after short transfers: %v, equal %v", err, bytes.Equal(got, data))
		}
	}
}

func TestTransfersWithoutProgressFail(t *testing.T) {
	k := &broken{}
	k.onRead = func(int, []byte, int64, bool) (int, error, bool) { return 0, syscall.EAGAIN, true }
	k.onWrite = func(int, []byte, int64, bool) (int, error, bool) { return 0, nil, true }
	disk, _ := openBroken(t, k)
	_, err := disk.ReadAt(make([]byte, 512), 0)
	wantErrno(t, "read that never has data", err, syscall.EIO)
	_, err = disk.WriteAt(make([]byte, 512), 0)
	wantErrno(t, "write that never stores", err, syscall.EIO)
}

func TestWriteErrorsAreOfOneRequest(t *testing.T) {
	k := &broken{}
	disk, _ := openBroken(t, k)
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT} {
		k.onWrite = func(int, []byte, int64, bool) (int, error, bool) { return 0, errno, true }
		_, err := disk.WriteAt(fill(512, 1), 0)
		wantErrno(t, "write", err, errno)
		k.onWrite = nil
		if _, err := disk.WriteAtFUA(fill(512, 2), 0); err != nil {
			t.Errorf("durable write after %v: %v", errno, err)
		}
		if err := disk.Sync(); err != nil {
			t.Errorf("flush after %v: %v", errno, err)
		}
	}
}

// flushFailures are the ways in which making data durable fails; each returns
// the answer to the request that it happens to.
var flushFailures = map[string]func(*broken, *block.Disk) error{
	"flush": func(k *broken, disk *block.Disk) error {
		k.onSync = func() (error, bool) { return syscall.EIO, k.syncs == 1 }
		return disk.Sync()
	},
	"flush without space": func(k *broken, disk *block.Disk) error {
		k.onSync = func() (error, bool) { return syscall.ENOSPC, k.syncs == 1 }
		return disk.Sync()
	},
	"durable write": func(k *broken, disk *block.Disk) error {
		failed := false
		k.onWrite = func(_ int, _ []byte, _ int64, dsync bool) (int, error, bool) {
			hit := dsync && !failed
			failed = true
			return 0, syscall.EIO, hit
		}
		_, err := disk.WriteAtFUA(fill(512, 1), 0)
		return err
	},
	"durable write that lost others": func(k *broken, disk *block.Disk) error {
		failed := false
		k.onWrite = func(_ int, _ []byte, _ int64, dsync bool) (int, error, bool) {
			hit := dsync && !failed
			failed = true
			return 0, syscall.ENOSPC, hit
		}
		_, err := disk.WriteAtFUA(fill(512, 1), 0)
		return err
	},
	"durable zeroes": func(k *broken, disk *block.Disk) error {
		k.onSync = func() (error, bool) { return syscall.EIO, k.syncs == 1 }
		return disk.WriteZeroes(0, 4096, block.FUA)
	},
}

func TestFailedFlushLatches(t *testing.T) {
	for name, cause := range flushFailures {
		t.Run(name, func(t *testing.T) {
			k := &broken{}
			disk, path := openBroken(t, k)
			wantErrno(t, "first failure", cause(k, disk), syscall.EIO)
			syncs := k.syncs
			for range 3 {
				wantErrno(t, "later flush", disk.Sync(), syscall.EIO)
				_, err := disk.WriteAtFUA(fill(512, 7), 0)
				wantErrno(t, "later durable write", err, syscall.EIO)
				wantErrno(t, "later durable zeroes", disk.WriteZeroes(0, 512, block.FUA), syscall.EIO)
			}
			if k.syncs != syncs {
				t.Errorf("the failed flush was tried %d times more", k.syncs-syncs)
			}
			if _, err := disk.WriteAt(fill(512, 3), 0); err != nil {
				t.Errorf("later write: %v", err)
			}
			if _, err := disk.ReadAt(make([]byte, 512), 0); err != nil {
				t.Errorf("later read: %v", err)
			}
			again := viewOf(t, mustOpen(t, "file:"+path+"?lock=0", Options{}))
			if err := again.Sync(); err != nil {
				t.Errorf("flush of the disk opened again: %v", err)
			}
		})
	}
}

func TestDurableWriteWithoutSpaceDoesNotLatch(t *testing.T) {
	k := &broken{}
	full := true
	k.onWrite = func(int, []byte, int64, bool) (int, error, bool) { return 0, syscall.ENOSPC, full }
	disk, _ := openBroken(t, k)
	_, err := disk.WriteAtFUA(fill(512, 1), 0)
	wantErrno(t, "durable write to a full disk", err, syscall.ENOSPC)
	k.mu.Lock()
	full = false
	k.mu.Unlock()
	if _, err := disk.WriteAtFUA(fill(512, 1), 0); err != nil {
		t.Errorf("durable write when there is space again: %v", err)
	}
}

func TestFileSystemWithoutDsync(t *testing.T) {
	k := &broken{}
	k.onWrite = func(_ int, _ []byte, _ int64, dsync bool) (int, error, bool) {
		return 0, syscall.EOPNOTSUPP, dsync
	}
	disk, _ := openBroken(t, k)
	for i := range 3 {
		if _, err := disk.WriteAtFUA(fill(512, 1), 0); err != nil {
			t.Fatal(err)
		}
		if k.syncs != i+1 {
			t.Errorf("%d durable writes made %d flushes", i+1, k.syncs)
		}
	}
}

func TestFileSystemWithoutHoles(t *testing.T) {
	k := &broken{onAllocate: func(uint32) (error, bool) { return syscall.EOPNOTSUPP, true }}
	disk, path := openBroken(t, k)
	if _, err := disk.WriteAt(fill(1<<20, 9), 0); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "trim", disk.Trim(0, 512), syscall.EINVAL) // it is not claimed
	for _, flags := range []block.Flags{block.FastZero, block.FastZero | block.NoHole, block.FastZero | block.FUA} {
		wantErrno(t, "fast zeroes", disk.WriteZeroes(0, 1<<20, flags), syscall.ENOTSUP)
	}
	if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, fill(1<<20, 9)) {
		t.Errorf("refused zeroes change the file: %v", err)
	}
	if err := disk.WriteZeroes(511, 1<<19, block.FUA); err != nil {
		t.Fatal(err)
	}
	want := fill(1<<20, 9)
	clear(want[511 : 511+1<<19])
	if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, want) {
		t.Errorf("zeroes are not written as asked: %v", err)
	}
}

func TestHoles(t *testing.T) {
	const keep = unix.FALLOC_FL_KEEP_SIZE
	for _, c := range []struct {
		name string
		do   func(*block.Disk) error
		mode uint32
	}{
		{"trim", func(d *block.Disk) error { return d.Trim(4096, 8192) }, unix.FALLOC_FL_PUNCH_HOLE | keep},
		{"zeroes", func(d *block.Disk) error { return d.WriteZeroes(4096, 8192, 0) }, unix.FALLOC_FL_PUNCH_HOLE | keep},
		{"zeroes without hole", func(d *block.Disk) error { return d.WriteZeroes(4096, 8192, block.NoHole) }, unix.FALLOC_FL_ZERO_RANGE | keep},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &broken{}
			disk, path := openBroken(t, k)
			if _, err := disk.WriteAt(fill(1<<20, 9), 0); err != nil {
				t.Fatal(err)
			}
			k.allocations = nil
			if err := c.do(disk); err != nil {
				t.Fatal(err)
			}
			if len(k.allocations) != 1 || k.allocations[0] != c.mode {
				t.Errorf("fallocate modes %#x, want %#x", k.allocations, c.mode)
			}
			want := fill(1<<20, 9)
			clear(want[4096 : 4096+8192])
			if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, want) {
				t.Errorf("the range is not zero, or more is: %v", err)
			}
		})
	}
}

func TestTruncatedFile(t *testing.T) {
	path := newFile(t, 1<<20)
	disk := viewOf(t, mustOpen(t, "file:"+path, Options{}))
	if _, err := disk.WriteAt(fill(1<<20, 5), 0); err != nil {
		t.Fatal(err)
	}
	const end = 300000
	if err := os.Truncate(path, end); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 8192)
	for _, off := range []int64{end - 4096, end, 1<<20 - 8192} {
		_, err := disk.ReadAt(buffer, off)
		wantErrno(t, "read behind the end", err, syscall.EINVAL)
		_, err = disk.WriteAt(buffer, off)
		wantErrno(t, "write behind the end", err, syscall.ENOSPC)
		_, err = disk.WriteAtFUA(buffer, off)
		wantErrno(t, "durable write behind the end", err, syscall.ENOSPC)
		wantErrno(t, "trim behind the end", disk.Trim(off, 8192), syscall.EINVAL)
		wantErrno(t, "zeroes behind the end", disk.WriteZeroes(off, 8192, 0), syscall.ENOSPC)
		wantErrno(t, "zeroes behind the end", disk.WriteZeroes(off, 8192, block.NoHole), syscall.ENOSPC)
	}
	if _, err := disk.ReadAt(buffer, end-8192); err != nil || !bytes.Equal(buffer, fill(8192, 5)) {
		t.Errorf("read before the new end: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != end {
		t.Errorf("the file has %d bytes, want %d: %v", st.Size(), end, err)
	}
	if err := disk.Sync(); err != nil {
		t.Errorf("flush: %v", err)
	}
}

// The size of a disk is that of its file, in whole blocks.
func TestResizedFile(t *testing.T) {
	path := newFile(t, 1<<20)
	for _, row := range []struct {
		spec string
		live bool
	}{{"file:" + path, true}, {"delay:read=0s:file:" + path, true}, {"mmap:" + path, false}, {"volatile:file:" + path, false}} {
		if err := os.Truncate(path, 1<<20); err != nil {
			t.Fatal(err)
		}
		d := mustOpen(t, row.spec, Options{})
		before := d.Info()
		for _, size := range []int64{2<<20 + 511, 1<<20 - 1, 100, 3 << 20} {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			want := before
			if row.live {
				want.Size = size &^ 511
			}
			if got := d.Info(); got != want {
				t.Errorf("%s: a file of %d bytes is %+v, want %+v", row.spec, size, got, want)
			}
		}
		disk, err := block.NewDisk(d)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 512)
		if _, err := disk.ReadAt(got, before.Size-512); err != nil {
			t.Errorf("%s: read of a disk that has grown: %v", row.spec, err)
		}
		if _, err := disk.ReadAt(got, 3<<20-512); (err == nil) != row.live {
			t.Errorf("%s: read of what is new: %v", row.spec, err)
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCachedReadsNeedNoWorker(t *testing.T) {
	k := &broken{}
	blocking := 0
	k.onRead = func(fd int, p []byte, off int64, noWait bool) (int, error, bool) {
		if !noWait {
			blocking++
		}
		n, err := unix.Pread(fd, p, off) // tmpfs knows no RWF_NOWAIT
		return n, err, true
	}
	disk, _ := openBroken(t, k)
	if _, err := disk.WriteAt(fill(65536, 1), 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 65536)
	for range 10 {
		if _, err := disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, fill(65536, 1)) {
			t.Fatal(err)
		}
	}
	if blocking != 0 {
		t.Errorf("%d reads of cached data went to a worker", blocking)
	}
}
