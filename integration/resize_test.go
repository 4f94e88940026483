package integration

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// resizing is what a client sees of a file that grows and shrinks under it: it keeps
// the size that it was told, the next client is told the new one, and nothing but a
// request behind the end fails.
const resizing = `
import errno, os

def client():
    c = nbd.NBD()
    c.set_strict_mode(0)
    c.connect_uri(%[1]q)
    return c

def refused(request, want):
    try:
        request()
    except nbd.Error as e:
        assert e.errnum == want, e
        return
    assert False, "it is not refused"

MiB = 1 << 20
old = client()
assert old.get_size() == MiB
os.truncate(%[2]q, 2 * MiB + 1000)
assert old.get_size() == MiB
refused(lambda: old.pread(512, MiB), errno.EINVAL)
refused(lambda: old.pwrite(b"a" * 512, MiB), errno.ENOSPC)
refused(lambda: old.zero(MiB, MiB), errno.ENOSPC)
grown = client()
assert grown.get_size() == 2 * MiB + 512, grown.get_size()
grown.pwrite(b"b" * 512, 2 * MiB)
assert grown.pread(512, 2 * MiB) == b"b" * 512
refused(lambda: grown.pread(512, 2 * MiB + 512), errno.EINVAL)
old.pwrite(b"c" * 512, 0)

os.truncate(%[2]q, MiB // 2)
for c in old, grown:
    for at in MiB // 2, MiB - 512:
        refused(lambda: c.pread(512, at), errno.EINVAL)
        refused(lambda: c.pwrite(b"d" * 512, at), errno.ENOSPC)
        refused(lambda: c.pwrite(b"d" * 512, at, nbd.CMD_FLAG_FUA), errno.ENOSPC)
        refused(lambda: c.zero(512, at), errno.ENOSPC)
        refused(lambda: c.trim(512, at), errno.EINVAL)
    assert c.pread(512, 0) == b"c" * 512
    c.flush()
shrunk = client()
assert shrunk.get_size() == MiB // 2
assert shrunk.pread(512, MiB // 2 - 512) == bytes(512)
for c in old, grown, shrunk:
    c.shutdown()
`

func TestClientsOfAFileThatIsResized(t *testing.T) {
	requires(t, "nbdsh")
	for _, options := range []string{"", "?direct=1"} {
		t.Run(options, func(t *testing.T) {
			image := sparseFile(t, 1<<20)
			s := ways[0].serve(t, program(t), disk{"disk", "file:" + image + options})
			run(t, "nbdsh", "-c", fmt.Sprintf(resizing, s.uri, image))
			st, err := os.Stat(image)
			must(t, err)
			if st.Size() != 512<<10 {
				t.Errorf("the file has %d bytes: a request has resized it", st.Size())
			}
		})
	}
}

// A session of an initiator hears of the size, and its queues go by that.
func TestSessionOfAFileThatIsResized(t *testing.T) {
	image := sparseFile(t, 1<<20)
	c := newChain(t, target.Config{Heartbeat: 200 * time.Millisecond}, target.Export{Name: "disk", Device: openBackend(t, "file:"+image)})
	d := c.attach(t, "", nil)
	defer func() { must(t, d.Close()) }()
	for _, size := range []int64{1 << 20, 3 << 20, 2<<20 + 512, 1 << 19, 1 << 20} {
		must(t, os.Truncate(image, size))
		eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == size })
		disk, err := block.NewDisk(d)
		must(t, err)
		if _, err := disk.WriteAt(make([]byte, 512), size-512); err != nil {
			t.Errorf("write of the last block of %d bytes: %v", size, err)
		}
		must(t, disk.Close())
		later := c.attach(t, "", func(cfg *initiator.Config) { cfg.ReadOnly = true })
		if got := later.Info().Size; got != size {
			t.Errorf("the next session has %d bytes, want %d", got, size)
		}
		must(t, later.Close())
	}
	// Who does not know yet that the disk has become shorter gets its errno.
	disk, err := block.NewDisk(d)
	must(t, err)
	defer disk.Close()
	must(t, os.Truncate(image, 1<<19))
	for range 2 { // before the target has told, and after
		_, err = disk.WriteAt(make([]byte, 512), 1<<20-512)
		if block.Errno(err) != syscall.ENOSPC {
			t.Errorf("write behind the end: %v", err)
		}
		_, err = disk.ReadAt(make([]byte, 512), 1<<20-512)
		if block.Errno(err) != syscall.EINVAL {
			t.Errorf("read behind the end: %v", err)
		}
		eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == 1<<19 })
	}
}

// NBD clients of an initiator are told the size of the disk at its target.
func TestAttachedDiskIsResized(t *testing.T) {
	requires(t, "nbdsh", "nbdinfo")
	image := sparseFile(t, 1<<20)
	s := chainWay.serve(t, program(t), disk{"disk", "file:" + image})
	for _, size := range []int64{3 << 20, 1 << 20} {
		must(t, os.Truncate(image, size))
		eventually(t, "the size", func() (any, bool) {
			got := strings.TrimSpace(run(t, "nbdinfo", "--size", s.uri))
			return got, got == fmt.Sprint(size)
		})
		run(t, "nbdsh", "-u", s.uri, "-c", fmt.Sprintf("h.pwrite(b'x' * 512, %d)", size-512))
	}
}
