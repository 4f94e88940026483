package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// allocated returns how much of a file is on the disk, in bytes.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	must(t, syscall.Stat(path, &st))
	return st.Blocks * 512
}

// firstHole returns where the first hole at or behind an offset begins.
func firstHole(t testing.TB, path string, from int64) int64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	at, err := f.Seek(from, unix.SEEK_HOLE)
	must(t, err)
	return at
}

// TestFlushedDataIsInTheFile kills the target at once after the flush: what it
// kept to itself would be gone.
func TestFlushedDataIsInTheFile(t *testing.T) {
	data := randomBytes(6<<20 + 512)
	source := writeFile(t, "source", data)
	for _, w := range ways[:3] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			image := sparseFile(t, int64(len(data)))
			s := w.serve(t, program(t), disk{"disk", "file:" + image})
			run(t, "nbdcopy", "--flush", source, s.uri)
			s.target.crash()
			checkFile(t, image, data)
		})
	}
}

// TestFlushReachesTheKernel counts the system calls that make data durable: a
// crash of the process alone cannot tell whether there are any.
func TestFlushReachesTheKernel(t *testing.T) {
	requires(t, "strace")
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "file:" + sparseFile(t, 1<<20)})
			trace := filepath.Join(t.TempDir(), "trace")
			c := startTool(t, "strace", "-f", "-o", trace, "-e", "trace=fdatasync,fsync,pwritev2",
				"-p", strconv.Itoa(s.target.pid()))
			eventually(t, "strace being attached", func() (any, bool) {
				return c.output(), strings.Contains(c.output(), "attached")
			})
			syncs := func() (n int) {
				text, err := os.ReadFile(trace)
				must(t, err)
				for line := range strings.Lines(string(text)) {
					if strings.Contains(line, "sync(") || strings.Contains(line, "RWF_DSYNC") {
						n++
					}
				}
				return n
			}
			// The cache of qemu-io would flush by itself.
			client := func(command string) { run(t, "nbdsh", "-u", s.uri, "-c", command) }
			client("h.pwrite(bytearray(4096), 0)")
			if n := syncs(); n != 0 {
				t.Errorf("a write without FUA is made durable %d times", n)
			}
			client("h.flush()")
			flushed := syncs()
			if flushed == 0 {
				t.Error("a flush is not made durable")
			}
			client("h.pwrite(bytearray(4096), 4096, flags=nbd.CMD_FLAG_FUA)")
			if syncs() == flushed {
				t.Error("a write with FUA is not made durable")
			}
			killProcess(t, c.cmd.Process.Pid, syscall.SIGINT)
			c.wait(t, toolLimit)
		})
	}
}

func TestFileStaysSparse(t *testing.T) {
	const size, data = 64 << 20, 8 << 20
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			image := sparseFile(t, size)
			s := w.serve(t, program(t), disk{"disk", "file:" + image})
			if n := allocated(t, image); n > 1<<20 {
				t.Fatalf("%d bytes are allocated before anything is written", n)
			}
			run(t, "qemu-io", "-f", "raw", s.uri, "-c", fmt.Sprintf("write -P 5 0 %d", data), "-c", "flush")
			if n := allocated(t, image); n < data || n > data+1<<20 {
				t.Errorf("%d bytes are allocated for %d written", n, data)
			}
			run(t, "qemu-io", "-d", "unmap", "-f", "raw", s.uri, "-c", "discard 2M 4M", "-c", "flush")
			if n := allocated(t, image); n > data-4<<20+1<<20 {
				t.Errorf("%d bytes are allocated after a trim of half of %d", n, data)
			}
			if at := firstHole(t, image, 0); at != 2<<20 {
				t.Errorf("the hole begins at %d, not %d", at, 2<<20)
			}
			// A client that says that holes are welcome writes zeroes as one.
			run(t, "qemu-io", "-d", "unmap", "-f", "raw", s.uri, "-c", "write -z -u 0 1M", "-c", "flush", "-c", "read -P 0 0 1M", "-c", "read -P 5 1M 1M")
			if at := firstHole(t, image, 0); at != 0 {
				t.Errorf("zeroes begin at 0, and the first hole at %d", at)
			}
			// One that says that they are not gets blocks.
			before := allocated(t, image)
			run(t, "qemu-io", "-f", "raw", s.uri, "-c", "write -z 32M 2M", "-c", "flush")
			if n := allocated(t, image) - before; n < 2<<20 {
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
	data := sparseBytes(32 << 20)
	source := sparseFile(t, int64(len(data)))
	f, err := os.OpenFile(source, os.O_WRONLY, 0)
	must(t, err)
	for at := 0; at < len(data); at += 4096 {
		if part := data[at : at+4096]; strings.Trim(string(part), "\x00") != "" {
			_, err := f.WriteAt(part, int64(at))
			must(t, err)
		}
	}
	must(t, f.Close())
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			image := writeFile(t, "disk.img", randomBytes(len(data)))
			s := w.serve(t, program(t), disk{"disk", "file:" + image})
			run(t, "nbdcopy", "--flush", source, s.uri)
			checkFile(t, image, data)
			if n := allocated(t, image); n > int64(len(data))/8 {
				t.Errorf("%d bytes are allocated for a sparse image", n)
			}
		})
	}
}

// TestOneWriterPerFile starts a second process on the same file.
func TestOneWriterPerFile(t *testing.T) {
	image := sparseFile(t, 1<<20)
	place := folder(t)
	p := start(t, "target", "--admin", filepath.Join(place, "a"), "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"), "--export", "disk=file:"+image)
	listen := "nbd+unix:///?socket=" + filepath.Join(place, "m")
	refused(t, 75, `backing file .* in use`, "target", "--listen", listen, "--admin", "none", "--export", "disk=file:"+image)
	refused(t, 75, `in use`, "up", "--admin", "none", "--export", "disk=file:"+image)
	// Two readers are no writers.
	p.stop()
	for _, name := range []string{"b", "c"} {
		start(t, "target", "--admin", filepath.Join(place, name), "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"+name), "--export", "disk=file:"+image+"?readonly=1")
	}
	refused(t, 75, `in use`, "target", "--listen", listen, "--admin", "none", "--export", "disk=file:"+image)
}
