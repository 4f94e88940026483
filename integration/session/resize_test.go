package session

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// A session of an initiator hears of the size, and its queues go by that.
func TestSessionOfAFileThatIsResized(t *testing.T) {
	t.Parallel()
	image := testbed.SparseFile(t, 1<<20)
	c := newChain(t, target.Config{KeepAlive: 700 * time.Millisecond}, target.Export{Name: "disk", Device: openBackend(t, "file:"+image)})
	d := c.attach(t, "", nil)
	defer func() { testbed.Must(t, d.Close()) }()
	for _, size := range []int64{1 << 20, 3 << 20, 2<<20 + 512, 1 << 19, 1 << 20} {
		testbed.Must(t, os.Truncate(image, size))
		testbed.Eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == size })
		disk, err := block.NewDisk(d)
		testbed.Must(t, err)
		if _, err := disk.WriteAt(make([]byte, 512), size-512); err != nil {
			t.Errorf("write of the last block of %d bytes: %v", size, err)
		}
		testbed.Must(t, disk.Close())
		later := c.attach(t, "", func(cfg *initiator.Config) { cfg.ReadOnly = true })
		if got := later.Info().Size; got != size {
			t.Errorf("the next session has %d bytes, want %d", got, size)
		}
		testbed.Must(t, later.Close())
	}
	// A client that has not seen the smaller size gets the errno of the disk.
	disk, err := block.NewDisk(d)
	testbed.Must(t, err)
	defer disk.Close()
	testbed.Must(t, os.Truncate(image, 1<<19))
	for range 2 { // before the target has told, and after
		_, err = disk.WriteAt(make([]byte, 512), 1<<20-512)
		if block.Errno(err) != syscall.ENOSPC {
			t.Errorf("write behind the end: %v", err)
		}
		_, err = disk.ReadAt(make([]byte, 512), 1<<20-512)
		if block.Errno(err) != syscall.EINVAL {
			t.Errorf("read behind the end: %v", err)
		}
		testbed.Eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == 1<<19 })
	}
}

// NBD clients of an initiator are told the size of the disk at its target.
func TestAttachedDiskIsResized(t *testing.T) {
	t.Parallel()
	testbed.Requires(t, "nbdsh", "nbdinfo")
	image := testbed.SparseFile(t, 1<<20)
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image})
	for _, size := range []int64{3 << 20, 1 << 20} {
		testbed.Must(t, os.Truncate(image, size))
		testbed.Eventually(t, "the size", func() (any, bool) {
			got := strings.TrimSpace(testbed.Run(t, "nbdinfo", "--size", s.URI))
			return got, got == fmt.Sprint(size)
		})
		testbed.Run(t, "nbdsh", "-u", s.URI, "-c", fmt.Sprintf("h.pwrite(b'x' * 512, %d)", size-512))
	}
}
