package backend

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// fileSize returns the bytes of a file.
func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// grow grows a disk, and returns the first error.
func grow(d block.Device, size int64) error {
	now, err := PrepareGrow(d, size)
	if err != nil {
		return err
	}
	return now()
}

// TestGrow: a file grows while clients write to it. It keeps what was there,
// and the new part is zeroes and takes writes.
func TestGrow(t *testing.T) {
	const first, step, steps = 1 << 20, 1<<18 + 4096, 8
	for _, form := range []string{"file:%s", "file:%s?direct=1", "delay:flush=1us:fault:read=EIO@0%%:file:%s", "fault:read=EIO@0%%:crc:file:%[1]s,%[1]s.sums"} {
		path := newFile(t, first)
		d := mustOpen(t, fmt.Sprintf(form, path), Options{})
		stop := make(chan struct{})
		var writers sync.WaitGroup
		written := make([]byte, first)
		for i := range 2 {
			disk, err := block.NewDisk(d)
			if err != nil {
				t.Fatal(err)
			}
			writers.Go(func() {
				defer disk.Close()
				for n := 1; ; n++ {
					part := written[i*first/2:][:first/2]
					at := n * 4096 % len(part)
					block := part[at:][:4096]
					copy(block, bytes.Repeat([]byte{byte(n)}, len(block)))
					if _, err := disk.WriteAt(block, int64(i*first/2+at)); err != nil {
						t.Error(err)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		size := int64(first)
		for range steps {
			size += step
			now, err := PrepareGrow(d, size)
			if err != nil {
				t.Fatal(err)
			}
			if got := fileSize(t, path); got == size {
				t.Fatalf("a preparation makes a file of %d bytes", got)
			}
			if err := now(); err != nil || d.Info().Size != size || fileSize(t, path) != size {
				t.Fatalf("%s: %+v, %v", form, d.Info(), err)
			}
			if err := grow(d, size); err != nil {
				t.Errorf("to the size that it has: %v", err)
			}
			disk, err := block.NewDisk(d)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4096)
			if _, err := disk.ReadAt(got, size-4096); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
				t.Errorf("what is new: %v", err)
			}
			if _, err := disk.WriteAt(bytes.Repeat([]byte{7}, 4096), size-4096); err != nil {
				t.Error(err)
			}
			if err := disk.Close(); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		writers.Wait()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(content[:first], written) {
			t.Errorf("%s: what was written is not there: %v", form, err)
		}
		for end := first + step; end <= len(content); end += step {
			if content[end-4096] != 7 {
				t.Errorf("%s: the last block of %d bytes is lost", form, end)
			}
		}
	}
}

// TestGrowRefused: a disk whose size is another thing's, that another process
// may change, or that would lose data, keeps its size and says why.
func TestGrowRefused(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	for _, name := range []string{"a", "base", "b"} {
		if err := errors.Join(os.WriteFile(path(name), nil, 0o600), os.Truncate(path(name), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		spec string
		size int64
		why  string
	}{
		{"file:" + path("a"), 1<<20 - 512, "does not shrink"},
		{"file:" + path("a"), 512, "does not shrink"},
		{"file:" + path("a"), 1<<20 + 100, "not a multiple of its block of 512"},
		{"file:" + path("a") + "?direct=1", 1<<20 + 256, "not a multiple of its block of "},
		{"file:" + path("a") + "?readonly=1", 2 << 20, "open for reading only"},
		{"file:" + path("a") + "?lock=0", 2 << 20, "open with lock=0"},
		{"mmap:" + path("a"), 2 << 20, "mmap: maps "},
		{"delay:any=1us:mmap:" + path("a"), 2 << 20, "mmap: maps "},
		{"cow:" + path("base") + "," + path("o") + "?create=1", 2 << 20, "has the size of its base"},
		{"crc:file:" + path("a") + "," + path("sums"), 512, "does not shrink"},
		{"crc:file:" + path("a") + "," + path("sums"), 1 << 47, "checksums are for"},
		{"crc:file:" + path("a") + "?readonly=1," + path("sums"), 2 << 20, "open for reading only"},
		{"crc:file:" + path("a") + "?lock=0," + path("sums"), 2 << 20, "open with lock=0"},
		{"fault:read=EIO@0%:crc:mmap:" + path("a") + "," + path("sums"), 2 << 20, "mmap: maps "},
		{"crc:memory:1M," + path("sums-of-memory"), 2 << 20, "only file: "},
		{"volatile:file:" + path("a"), 2 << 20, "the cache of volatile:"},
		{"memory:1M", 2 << 20, "only file: "},
		{"memory:1M", 512, "does not shrink"},
		{"null:1M", 2 << 20, "only file: "},
	} {
		d := mustOpen(t, c.spec, Options{})
		if _, err := PrepareGrow(d, c.size); !errors.Is(err, ErrFixedSize) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s to %d: %v, want %q", c.spec, c.size, err, c.why)
		}
		if err := grow(d, 1<<20); err != nil {
			t.Errorf("%s to the size that it has: %v", c.spec, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if got := fileSize(t, path("a")); got != 1<<20 {
			t.Fatalf("%s: the file has %d bytes", c.spec, got)
		}
	}
}

// TestGrowNeverShrinks: a file that another program made longer meanwhile, or
// whose end is no whole block, loses nothing.
func TestGrowNeverShrinks(t *testing.T) {
	path := newFile(t, 1<<20)
	d := mustOpen(t, "file:"+path, Options{})
	now, err := PrepareGrow(d, 2<<20)
	if err = errors.Join(err, os.Truncate(path, 3<<20+1000)); err != nil {
		t.Fatal(err)
	}
	if err := now(); err != nil || fileSize(t, path) != 3<<20+1000 {
		t.Errorf("the file has %d bytes: %v", fileSize(t, path), err)
	}
	if err := grow(d, 3<<20+512); err != nil || fileSize(t, path) != 3<<20+1000 {
		t.Errorf("to what it has in whole blocks: the file has %d bytes: %v", fileSize(t, path), err)
	}
	if err := grow(d, 3<<20+1024); err != nil || fileSize(t, path) != 3<<20+1024 {
		t.Errorf("the file has %d bytes: %v", fileSize(t, path), err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGrowNotDurable: a size that is not durable is an error and closes the
// latch: the flush may have lost writes. Then the disk does not grow again.
func TestGrowNotDurable(t *testing.T) {
	path := newFile(t, 1<<20)
	k := &broken{}
	d, err := openFile(path, fileOptions{lock: true}, k)
	if err != nil {
		t.Fatal(err)
	}
	k.onSync = func() (error, bool) { return unix.EIO, true }
	if err := grow(d, 2<<20); block.Errno(err) != unix.EIO || !strings.Contains(err.Error(), "not durable") {
		t.Errorf("a flush that fails: %v", err)
	}
	k.onSync = nil
	if _, err := PrepareGrow(d, 3<<20); !errors.Is(err, ErrFixedSize) {
		t.Errorf("after a failed flush: %v", err)
	}
	disk, err := block.NewDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Sync(); block.Errno(err) != unix.EIO {
		t.Errorf("a later flush: %v", err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	_ = d.Close() // it says again that writes are lost
}

// A file whose end is no whole block grows while clients write to that block,
// past the page cache: every flush succeeds.
func TestGrowAmidDirectWrites(t *testing.T) {
	const steps = 300
	path := newFile(t, 1<<20+512)
	d := mustOpen(t, "file:"+path+"?direct=1&io=uring", Options{})
	grain := int64(d.Info().MinimumBlock)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				disk, err := block.NewDisk(d)
				if err != nil {
					t.Error(err)
					return
				}
				size, _ := disk.Size()
				for range 8 {
					_, e := disk.WriteAt(bytes.Repeat([]byte{7}, int(grain)), size-grain)
					err = errors.Join(err, e)
				}
				if err = errors.Join(err, disk.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	size := d.Info().Size
	for range steps {
		size += 3 * grain
		if err := grow(d, size); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	writers.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
