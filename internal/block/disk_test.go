package block

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pojntfx/go-nbd/pkg/backend"
	"pgregory.net/rapid"
)

// newDisk returns a Disk over a go-nbd backend.
func newDisk(t testing.TB, b backend.Backend, options BackendOptions) *Disk {
	t.Helper()
	device, err := FromBackend(b, options)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := NewDisk(device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return disk
}

func TestDiskAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const size = 1 << 20
		// Twice over: a Disk is a go-nbd backend, so a Disk of a Disk is one
		// too.
		inner := newDisk(t, backend.NewMemoryBackend(make([]byte, size)), BackendOptions{})
		disk := newDisk(t, inner, BackendOptions{})
		model := make([]byte, size)
		stamp := byte(0)
		span := func(rt *rapid.T) (off, n int64) {
			off = rapid.Int64Range(0, size-1).Draw(rt, "off")
			return off, rapid.Int64Range(1, min(size-off, 70000)).Draw(rt, "n")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				off, n := span(rt)
				stamp++
				p := bytes.Repeat([]byte{stamp}, int(n))
				write := disk.WriteAt
				if rapid.Bool().Draw(rt, "fua") {
					write = disk.WriteAtFUA
				}
				if k, err := write(p, off); k != len(p) || err != nil {
					rt.Fatalf("write: %d, %v", k, err)
				}
				copy(model[off:], p)
			},
			"zero": func(rt *rapid.T) {
				off, n := span(rt)
				if err := disk.WriteZeroes(off, n, FUA|NoHole); err != nil {
					rt.Fatal(err)
				}
				clear(model[off : off+n])
			},
			"read": func(rt *rapid.T) {
				off, n := span(rt)
				p := make([]byte, n)
				if k, err := disk.ReadAt(p, off); k != len(p) || err != nil {
					rt.Fatalf("read: %d, %v", k, err)
				}
				if !bytes.Equal(p, model[off:off+n]) {
					rt.Fatalf("%d bytes at %d differ from the model", n, off)
				}
			},
			"sync": func(rt *rapid.T) {
				if err := disk.Sync(); err != nil {
					rt.Fatal(err)
				}
			},
		})
	})
}

func TestDiskEnds(t *testing.T) {
	disk := newDisk(t, backend.NewMemoryBackend(bytes.Repeat([]byte{7}, 1024)), BackendOptions{})
	p := make([]byte, 100)
	if n, err := disk.ReadAt(p, 1000); n != 24 || err != io.EOF {
		t.Errorf("read over the end: %d, %v; want 24, EOF", n, err)
	}
	for _, off := range []int64{1024, 5000, 1 << 62} {
		if n, err := disk.ReadAt(p, off); n != 0 || err != io.EOF {
			t.Errorf("read at %d: %d, %v; want 0, EOF", off, n, err)
		}
	}
	if n, err := disk.ReadAt(p, -1); n != 0 || Errno(err) != syscall.EINVAL {
		t.Errorf("read before the start: %d, %v; want EINVAL", n, err)
	}
	for _, off := range []int64{1000, 1024, -1, 1 << 62} {
		if n, err := disk.WriteAt(p, off); n != 0 || Errno(err) != syscall.ENOSPC {
			t.Errorf("write at %d: %d, %v; want ENOSPC", off, n, err)
		}
		if err := disk.WriteZeroes(off, 100, 0); Errno(err) != syscall.ENOSPC {
			t.Errorf("write zeroes at %d: %v; want ENOSPC", off, err)
		}
	}
	if err := disk.Trim(0, 512); Errno(err) != syscall.EINVAL {
		t.Errorf("trim of a disk that cannot: %v; want EINVAL", err)
	}
	if n, err := disk.WriteAt(nil, 0); n != 0 || err != nil {
		t.Errorf("write of nothing: %d, %v", n, err)
	}
	if size, err := disk.Size(); size != 1024 || err != nil {
		t.Errorf("Size() = %d, %v", size, err)
	}
}

func TestDiskCallsRunInParallel(t *testing.T) {
	b := &scripted{size: 1 << 20}
	var arrived sync.WaitGroup
	arrived.Add(diskQueues)
	b.read = func(p []byte) (int, error) {
		arrived.Done()
		arrived.Wait() // deadlocks unless all are here at the same time
		return len(p), nil
	}
	disk := newDisk(t, b, BackendOptions{})
	var callers sync.WaitGroup
	for range diskQueues {
		callers.Go(func() {
			if _, err := disk.ReadAt(make([]byte, 512), 0); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
}

func TestClosedDisk(t *testing.T) {
	device, err := FromBackend(&scripted{size: 512}, BackendOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	disk, err := NewDisk(device)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := disk.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read of a closed disk: %v", err)
	}
}

// scripted is a go-nbd backend whose functions a test replaces.
type scripted struct {
	size        int64
	read, write func([]byte) (int, error)
	sync        func() error
}

func (s *scripted) ReadAt(p []byte, _ int64) (int, error) {
	if s.read == nil {
		return len(p), nil
	}
	return s.read(p)
}

func (s *scripted) WriteAt(p []byte, _ int64) (int, error) {
	if s.write == nil {
		return len(p), nil
	}
	return s.write(p)
}

func (s *scripted) Size() (int64, error) { return s.size, nil }

func (s *scripted) Sync() error {
	if s.sync == nil {
		return nil
	}
	return s.sync()
}

func TestErrorsOfBackends(t *testing.T) {
	cases := []struct {
		name  string
		n     int
		err   error
		read  syscall.Errno
		write syscall.Errno
	}{
		{"all", 512, nil, 0, 0},
		{"all and EOF", 512, io.EOF, 0, syscall.EIO},
		{"short", 100, nil, syscall.EIO, syscall.EIO},
		{"short and EOF", 100, io.EOF, syscall.EIO, syscall.EIO},
		{"errno", 0, &os.PathError{Op: "x", Path: "y", Err: syscall.ENOSPC}, syscall.ENOSPC, syscall.ENOSPC},
		{"permission", 0, os.ErrPermission, syscall.EPERM, syscall.EPERM},
		{"other", 0, errors.New("no idea"), syscall.EIO, syscall.EIO},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			answer := func([]byte) (int, error) { return c.n, c.err }
			disk := newDisk(t, &scripted{size: 1024, read: answer, write: answer}, BackendOptions{})
			if _, err := disk.ReadAt(make([]byte, 512), 0); Errno(err) != c.read {
				t.Errorf("read: %v, want %v", err, c.read)
			}
			if _, err := disk.WriteAt(make([]byte, 512), 0); Errno(err) != c.write {
				t.Errorf("write: %v, want %v", err, c.write)
			}
		})
	}
}

func TestPanicOfBackendIsAnError(t *testing.T) {
	var told atomic.Int32
	b := &scripted{size: 1024, read: func([]byte) (int, error) { panic("slice bounds out of range") }}
	disk := newDisk(t, b, BackendOptions{Panicked: func(value any, stack []byte) {
		if value == "slice bounds out of range" && bytes.Contains(stack, []byte("Execute")) {
			told.Add(1)
		}
	}})
	for range 3 {
		if _, err := disk.ReadAt(make([]byte, 512), 0); Errno(err) != syscall.EIO {
			t.Errorf("read: %v, want EIO", err)
		}
	}
	if _, err := disk.WriteAt(make([]byte, 512), 0); err != nil {
		t.Errorf("write after panics: %v", err)
	}
	if told.Load() != 3 {
		t.Errorf("got %d panics, want 3", told.Load())
	}
}

func TestFailedSyncIsNeverRetried(t *testing.T) {
	syncs := 0
	b := &scripted{size: 1024, sync: func() error {
		if syncs++; syncs == 2 {
			return syscall.ENOSPC
		}
		return nil
	}}
	disk := newDisk(t, b, BackendOptions{})
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := disk.Sync(); Errno(err) != syscall.EIO {
			t.Errorf("flush: %v, want EIO", err)
		}
		if _, err := disk.WriteAtFUA(make([]byte, 512), 0); Errno(err) != syscall.EIO {
			t.Errorf("write with FUA: %v, want EIO", err)
		}
	}
	if _, err := disk.WriteAt(make([]byte, 512), 0); err != nil {
		t.Errorf("write: %v", err)
	}
	if syncs != 2 {
		t.Errorf("Sync was called %d times, want 2", syncs)
	}
}

func TestUnservableBackends(t *testing.T) {
	for _, c := range []struct {
		size  int64
		least uint32
	}{{0, 0}, {-1, 0}, {1000, 512}, {1024, 3}, {1 << 30, 1 << 17}} {
		if _, err := FromBackend(&scripted{size: c.size}, BackendOptions{MinimumBlock: c.least}); err == nil {
			t.Errorf("%d bytes in blocks of %d are served", c.size, c.least)
		}
	}
}

func TestReadOnlyBackend(t *testing.T) {
	disk := newDisk(t, &scripted{size: 1024}, BackendOptions{ReadOnly: true})
	if _, err := disk.WriteAt(make([]byte, 512), 0); Errno(err) != syscall.EPERM {
		t.Errorf("write: %v, want EPERM", err)
	}
	if _, err := disk.ReadAt(make([]byte, 512), 0); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := disk.Sync(); err != nil {
		t.Errorf("flush: %v", err)
	}
}
