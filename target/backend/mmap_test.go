package backend

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// openMap returns a mapped disk of size bytes, its synchronous view and its
// path.
func openMap(t *testing.T, size int64) (*mapped, *block.Disk, string) {
	t.Helper()
	path := newFile(t, size)
	m := mustOpen(t, "mmap:"+path, Options{}).(*mapped)
	d, err := block.NewDisk(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return m, d, path
}

func TestMappingShowsWhatWasWritten(t *testing.T) {
	m, d, _ := openMap(t, 8<<20)
	if len(m.Mapping()) != 8<<20 {
		t.Fatalf("mapping of %d bytes", len(m.Mapping()))
	}
	data := bytes.Repeat([]byte("data"), 4096)
	for _, off := range []int64{0, 4095, 3<<20 + 17, 8<<20 - int64(len(data))} {
		if _, err := d.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
		if !m.Resident(off, int64(len(data))) {
			t.Errorf("what was written at %d is not resident", off)
		}
		if !bytes.Equal(m.Mapping()[off:][:len(data)], data) {
			t.Errorf("the mapping has something else at %d", off)
		}
	}
}

// Another process truncates the disk: the lost range is not resident, and reads
// and writes of it have errnos.
func TestMapOfATruncatedFile(t *testing.T) {
	m, d, path := openMap(t, 8<<20)
	data := make([]byte, 64<<10)
	for i := range data {
		data[i] = byte(i)
	}
	for _, off := range []int64{0, 1 << 20, 4 << 20} {
		if _, err := d.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, 1<<20+100); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off, n   int64
		resident bool
	}{
		{0, 64 << 10, true},
		{4 << 20, 64 << 10, false},
		{4 << 20, 1, false},
		{1<<20 - 4096, 64 << 10, false}, // across the end
		{1 << 20, 100, true},
		{1 << 20, 101, false}, // behind the end, in the page that holds it
		{1<<20 + 512, 512, false},
		{0, 8 << 20, false},
	} {
		if got := m.Resident(c.off, c.n); got != c.resident {
			t.Errorf("[%d, +%d) resident: %v, want %v", c.off, c.n, got, c.resident)
		}
	}
	if _, err := d.ReadAt(data, 4<<20); block.Errno(err) != unix.EINVAL {
		t.Errorf("read behind the end: %v", err)
	}
	if _, err := d.WriteAt(data, 4<<20); block.Errno(err) != unix.ENOSPC {
		t.Errorf("write behind the end: %v", err)
	}
	if _, err := d.ReadAt(data, 0); err != nil || data[255] != 255 {
		t.Errorf("read before the end: %v", err)
	}
	// The file grows back: there are zeroes.
	if err := os.Truncate(path, 8<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadAt(data, 4<<20); err != nil || data[1] != 0 {
		t.Errorf("read of what grew back: %v, %d", err, data[1])
	}
}

// Memory that is registered with a NIC stays what it is: a disk with open
// queues is not unmapped.
func TestMapIsNotClosedUnderItsQueues(t *testing.T) {
	m := mustOpen(t, "mmap:"+newFile(t, 1<<20), Options{}).(*mapped)
	var queues [2]block.Queue
	for i := range queues {
		var err error
		if queues[i], err = m.NewQueue(1); err != nil {
			t.Fatal(err)
		}
	}
	mapping := m.Mapping()
	for _, q := range queues {
		if err := m.Close(); block.Errno(err) != unix.EBUSY {
			t.Errorf("close of a disk with open queues: %v", err)
		}
		if err := unix.Madvise(mapping, unix.MADV_NORMAL); err != nil {
			t.Errorf("the mapping is gone: %v", err)
		}
		for range 2 { // the second does not count
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Errorf("close of a disk without queues: %v", err)
		}
	}
	if _, err := m.NewQueue(1); block.Errno(err) != unix.EBADF {
		t.Errorf("queue of a closed disk: %v", err)
	}
}

func TestResidentDoesNotAllocate(t *testing.T) {
	m, d, _ := openMap(t, 8<<20)
	if _, err := d.WriteAt(make([]byte, 8<<20), 0); err != nil { // a hole of tmpfs has no pages
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if !m.Resident(0, 8<<20) {
			t.Fatal("not resident")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMapIsNotDirect(t *testing.T) {
	if _, err := Open("mmap:"+newFile(t, 1<<20)+"?direct=1", Options{}); !errors.Is(err, ErrUsage) {
		t.Errorf("direct=1: %v", err)
	}
	if _, err := Open("mmap:", Options{}); !errors.Is(err, ErrUsage) {
		t.Errorf("no path: %v", err)
	}
	if _, err := Open("mmap:/nonexistent/disk", Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Power cuts in front of a mapped file: what was flushed is in the file, and in
// every mapping of it, and of the rest each sector is old or new.
func TestPowerCutOfAMap(t *testing.T) {
	const size = 1 << 20
	path := newFile(t, size)
	for seed := range uint64(8) {
		v := mustOpen(t, "volatile:mmap:"+path, Options{}).(*Volatile)
		d, err := block.NewDisk(v)
		if err != nil {
			t.Fatal(err)
		}
		old, young := byte(2*seed+1), byte(2*seed+2)
		steps := []func() error{
			func() error { _, err := d.WriteAt(bytes.Repeat([]byte{old}, size), 0); return err },
			d.Sync,
			func() error { _, err := d.WriteAt(bytes.Repeat([]byte{young}, size), 0); return err },
			func() error { _, err := d.WriteAtFUA(bytes.Repeat([]byte{young}, 4096), 8192); return err },
			func() error { return v.Crash(seed) },
			d.Close,
			v.Close,
		}
		for i, step := range steps {
			if err := step(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		m := mustOpen(t, "mmap:"+path, Options{}).(*mapped)
		lost := 0
		for at := 0; at < size; at += sector {
			switch s := m.Mapping()[at : at+sector]; {
			case bytes.Count(s, []byte{young}) == sector:
			case bytes.Count(s, []byte{old}) == sector && (at < 8192 || at >= 8192+4096):
				lost++
			default:
				t.Fatalf("seed %d: at %d: %d, want %d or %d", seed, at, s[0], old, young)
			}
		}
		if lost == 0 || lost == size/sector {
			t.Errorf("seed %d: %d sectors were lost", seed, lost)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
