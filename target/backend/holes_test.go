package backend

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// extents asks a disk for all of a range, with memory for a few extents at a
// time.
func extents(t *testing.T, d block.Device, off, end int64) []block.Extent {
	t.Helper()
	q, err := d.NewQueue(1)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	all := block.Request{Length: end - off, Extents: make([]block.Extent, 0, 64)}
	for off < end {
		r := block.Request{Op: block.Status, Offset: off, Length: end - off, Extents: make([]block.Extent, 0, 3)}
		q.Submit(&r)
		q.Kick()
		for done := [1]*block.Request{}; q.Reap(done[:]) == 0; {
			if q.FD() < 0 {
				continue
			}
			if d, ok := q.Arm(); ok {
				timeout := 1000
				if d >= 0 {
					timeout = int(d.Milliseconds()) + 1
				}
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, timeout)
			}
		}
		if r.Err != nil || len(r.Extents) == 0 {
			t.Fatalf("status at %d: %d extents, %v", off, len(r.Extents), r.Err)
		}
		for _, e := range r.Extents {
			all.AddExtent(e.Length, e.Flags)
			off += e.Length
		}
	}
	return all.Extents
}

const hole = block.Hole | block.Zero

// A range that was never written, was trimmed or was zeroed is a hole.
func TestExtentsOfHoles(t *testing.T) {
	const mib = 1 << 20
	for name, open := range map[string]func(testing.TB) block.Device{
		"memory": onMemory(""), "file": onFile("", ""), "direct": onFile("", "?direct=1"),
		"delayed": onMemory("delay:status=10us:"),
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			disk := viewOf(t, d)
			size := d.Info().Size
			if got := extents(t, d, 0, size); !slices.Equal(got, []block.Extent{{Length: size, Flags: hole}}) {
				t.Errorf("a new disk has %v", got)
			}
			if _, err := disk.WriteAt(make([]byte, 8*mib), 16*mib); err != nil { // zeroes, but written
				t.Fatal(err)
			}
			if err := disk.Trim(18*mib, 2*mib); err != nil {
				t.Fatal(err)
			}
			if err := disk.WriteZeroes(22*mib, 2*mib, 0); err != nil {
				t.Fatal(err)
			}
			want := []block.Extent{
				{Length: 16 * mib, Flags: hole},
				{Length: 2 * mib},
				{Length: 2 * mib, Flags: hole},
				{Length: 2 * mib},
				{Length: size - 22*mib, Flags: hole},
			}
			if got := extents(t, d, 0, size); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			want = []block.Extent{{Length: 1 * mib}, {Length: 1 * mib, Flags: hole}}
			if got := extents(t, d, 17*mib, 19*mib); !slices.Equal(got, want) {
				t.Errorf("got %v of a part, want %v", got, want)
			}
		})
	}
}

func TestNullIsAHole(t *testing.T) {
	d := mustOpen(t, "null:1EiB", Options{})
	defer d.Close()
	if got := extents(t, d, 0, 1<<60); !slices.Equal(got, []block.Extent{{Length: 1 << 60, Flags: hole}}) {
		t.Errorf("got %v", got)
	}
}

// A file system that cannot tell, or does not stand still, has data.
func TestUnknownHoles(t *testing.T) {
	for name, seek := range map[string]func(off int64, whence int) (int64, error){
		"not supported": func(int64, int) (int64, error) { return -1, unix.EINVAL },
		"broken":        func(int64, int) (int64, error) { return -1, unix.EIO },
		"no hole": func(off int64, whence int) (int64, error) {
			if whence == unix.SEEK_HOLE {
				return -1, unix.EINVAL
			}
			return off, nil
		},
		"hole made meanwhile": func(off int64, whence int) (int64, error) { return off, nil },
	} {
		t.Run(name, func(t *testing.T) {
			d, err := openFile(newFile(t, diskSize), fileOptions{}, &broken{onSeek: seek})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if got := extents(t, d, 4096, diskSize); !slices.Equal(got, []block.Extent{{Length: diskSize - 4096}}) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// Status of a memory disk looks at a bounded number of units.
func TestStatusIsBounded(t *testing.T) {
	d := mustOpen(t, fmt.Sprintf("memory:%d", int64(1)<<34), Options{})
	defer d.Close()
	q, err := d.NewQueue(1)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	r := block.Request{Op: block.Status, Length: 1 << 34, Extents: make([]block.Extent, 0, 1)}
	q.Submit(&r)
	q.Reap(make([]*block.Request, 1))
	if got := r.Covered(); r.Err != nil || got != unitsPerStatus*memoryUnit {
		t.Errorf("%d bytes, %v", got, r.Err)
	}
}

// A range behind the end is not a hole.
func TestStatusBehindTheEnd(t *testing.T) {
	path := newFile(t, 1<<20)
	d := mustOpen(t, "file:"+path, Options{})
	defer d.Close()
	if err := os.Truncate(path, 512<<10); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{512<<10 - 512, 512 << 10} {
		r := block.Request{Op: block.Status, Offset: off, Length: 1024, Extents: make([]block.Extent, 0, 3)}
		wantErrno(t, "status behind the end", d.(*file).Execute(&r), syscall.EINVAL)
	}
}
