package nbd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"golang.org/x/sys/unix"
)

// allocated returns how much of a file is on the disk, in bytes.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	testbed.Must(t, syscall.Stat(path, &st))
	return st.Blocks * 512
}

// firstHole returns where the first hole at or behind an offset begins.
func firstHole(t testing.TB, path string, from int64) int64 {
	t.Helper()
	f, err := os.Open(path)
	testbed.Must(t, err)
	defer f.Close()
	at, err := f.Seek(from, unix.SEEK_HOLE)
	testbed.Must(t, err)
	return at
}

// TestFlushedDataIsInTheFile kills the target at once after the flush: what it
// kept to itself would be gone.
func TestFlushedDataIsInTheFile(t *testing.T) {
	data := testbed.RandomBytes(6<<20 + 512)
	source := testbed.WriteFile(t, "source", data)
	for _, w := range testbed.Ways[:3] {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			image := testbed.SparseFile(t, int64(len(data)))
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image})
			testbed.Run(t, "nbdcopy", "--flush", source, s.URI)
			s.Target.Crash()
			testbed.CheckFile(t, image, data)
		})
	}
}

// TestFlushReachesTheKernel counts the system calls that make data durable: a
// crash of the process alone cannot tell whether there are any.
func TestFlushReachesTheKernel(t *testing.T) {
	testbed.Requires(t, "strace")
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + testbed.SparseFile(t, 1<<20)})
			trace := filepath.Join(t.TempDir(), "trace")
			c := testbed.StartTool(t, "strace", "-f", "-o", trace, "-e", "trace=fdatasync,fsync,pwritev2",
				"-p", strconv.Itoa(s.Target.PID()))
			testbed.Eventually(t, "strace being attached", func() (any, bool) {
				return c.Output(), strings.Contains(c.Output(), "attached")
			})
			syncs := func() (n int) {
				text, err := os.ReadFile(trace)
				testbed.Must(t, err)
				for line := range strings.Lines(string(text)) {
					if strings.Contains(line, "sync(") || strings.Contains(line, "RWF_DSYNC") {
						n++
					}
				}
				return n
			}
			// The cache of qemu-io would flush on its own.
			client := func(command string) { testbed.Run(t, "nbdsh", "-u", s.URI, "-c", command) }
			// The first write of a writer keeps with the disk who wrote last.
			client("h.pwrite(bytearray(4096), 0)")
			first := syncs()
			client("h.pwrite(bytearray(4096), 0)")
			if n := syncs() - first; n != 0 {
				t.Errorf("a write without FUA is made durable %d times", n)
			}
			client("h.flush()")
			flushed := syncs()
			if flushed == first {
				t.Error("a flush is not made durable")
			}
			client("h.pwrite(bytearray(4096), 4096, flags=nbd.CMD_FLAG_FUA)")
			if syncs() == flushed {
				t.Error("a write with FUA is not made durable")
			}
			testbed.KillProcess(t, c.Cmd.Process.Pid, syscall.SIGINT)
			c.Wait(t, testbed.ToolLimit)
		})
	}
}

func TestFileStaysSparse(t *testing.T) {
	const size, data = 64 << 20, 8 << 20
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			image := testbed.SparseFile(t, size)
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image})
			if n := allocated(t, image); n > 1<<20 {
				t.Fatalf("%d bytes are allocated before anything is written", n)
			}
			testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", fmt.Sprintf("write -P 5 0 %d", data), "-c", "flush")
			if n := allocated(t, image); n < data || n > data+1<<20 {
				t.Errorf("%d bytes are allocated for %d written", n, data)
			}
			testbed.Run(t, "qemu-io", "-d", "unmap", "-f", "raw", s.URI, "-c", "discard 2M 4M", "-c", "flush")
			if n := allocated(t, image); n > data-4<<20+1<<20 {
				t.Errorf("%d bytes are allocated after a trim of half of %d", n, data)
			}
			if at := firstHole(t, image, 0); at != 2<<20 {
				t.Errorf("the hole begins at %d, not %d", at, 2<<20)
			}
			// A client that says that holes are welcome writes zeroes as one.
			testbed.Run(t, "qemu-io", "-d", "unmap", "-f", "raw", s.URI, "-c", "write -z -u 0 1M", "-c", "flush", "-c", "read -P 0 0 1M", "-c", "read -P 5 1M 1M")
			if at := firstHole(t, image, 0); at != 0 {
				t.Errorf("zeroes begin at 0, and the first hole at %d", at)
			}
			// One that says that they are not gets blocks.
			before := allocated(t, image)
			testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", "write -z 32M 2M", "-c", "flush")
			// The map of the blocks may become a block shorter.
			if n := allocated(t, image) - before; n < 2<<20-64<<10 {
				t.Errorf("zeroes that must have blocks have %d bytes of 2 MiB", n)
			}
			if st, err := os.Stat(image); err != nil || st.Size() != size {
				t.Errorf("the file has %d bytes, not %d (%v)", st.Size(), size, err)
			}
		})
	}
}

// TestNbdcopyKeepsHoles copies a sparse image onto a full disk.
func TestNbdcopyKeepsHoles(t *testing.T) {
	data := testbed.SparseBytes(32 << 20)
	source := testbed.SparseFile(t, int64(len(data)))
	f, err := os.OpenFile(source, os.O_WRONLY, 0)
	testbed.Must(t, err)
	for at := 0; at < len(data); at += 4096 {
		if part := data[at : at+4096]; strings.Trim(string(part), "\x00") != "" {
			_, err := f.WriteAt(part, int64(at))
			testbed.Must(t, err)
		}
	}
	testbed.Must(t, f.Close())
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			image := testbed.WriteFile(t, "disk.img", testbed.RandomBytes(len(data)))
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image})
			testbed.Run(t, "nbdcopy", "--flush", source, s.URI)
			testbed.CheckFile(t, image, data)
			// A piece of data takes the 256 KiB around it (docs/decisions/0014).
			if n := allocated(t, image); n > int64(len(data)>>20+1)*256<<10+1<<20 {
				t.Errorf("%d bytes are allocated for a sparse image", n)
			}
		})
	}
}

// TestOneWriterPerFile starts a second process on the same file.
func TestOneWriterPerFile(t *testing.T) {
	image := testbed.SparseFile(t, 1<<20)
	place := testbed.Folder(t)
	p := testbed.Start(t, "target", "--admin", filepath.Join(place, "a"), "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"), "--export", "disk=file:"+image)
	listen := "nbd+unix:///?socket=" + filepath.Join(place, "m")
	testbed.Refused(t, 75, `backing file .* in use`, "target", "--listen", listen, "--admin", "none", "--export", "disk=file:"+image)
	testbed.Refused(t, 75, `in use`, "up", "--admin", "none", "--export", "disk=file:"+image)
	// Two readers are no writers.
	p.Stop()
	for _, name := range []string{"b", "c"} {
		testbed.Start(t, "target", "--admin", filepath.Join(place, name), "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"+name), "--export", "disk=file:"+image+"?readonly=1")
	}
	testbed.Refused(t, 75, `in use`, "target", "--listen", listen, "--admin", "none", "--export", "disk=file:"+image)
}
