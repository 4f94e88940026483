package nbd

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

func TestQemuImgConvertsComparesAndChecks(t *testing.T) {
	data := append(testbed.RandomBytes(9<<20), testbed.SparseBytes(11<<20+512)...)
	source := testbed.WriteFile(t, "source", data)
	const size = 20<<20 + 512
	testbed.EachWay(t, testbed.FileDisk(size), func(t *testing.T, s testbed.Service) {
		testbed.Run(t, "qemu-img", "convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", source, s.URI)
		if out := testbed.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.URI); !strings.Contains(out, "identical") {
			t.Errorf("compare: %s", out)
		}
		back := filepath.Join(t.TempDir(), "back")
		testbed.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", s.URI, back)
		testbed.CheckFile(t, back, data)

		// Raw images have nothing to check, which has an exit code of its own;
		// an image inside the export has.
		c := testbed.StartTool(t, "qemu-img", "check", "-f", "raw", s.URI)
		if code := c.Wait(t, testbed.ToolLimit); code != 63 {
			t.Errorf("check of a raw image: exit code %d: %s", code, c.Output())
		}
		testbed.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", s.URI, "16M")
		testbed.Run(t, "qemu-io", "-f", "qcow2", s.URI, "-c", "write -P 7 3M 5M", "-c", "discard 4M 1M", "-c", "flush", "-c", "read -P 7 5M 3M")
		if out := testbed.Run(t, "qemu-img", "check", "-f", "qcow2", s.URI); !strings.Contains(out, "No errors") {
			t.Errorf("check: %s", out)
		}
	})
}

// A difference must be seen, or the comparison above proves nothing.
func TestQemuImgCompareSeesOneByte(t *testing.T) {
	data := testbed.RandomBytes(4 << 20)
	source := testbed.WriteFile(t, "source", data)
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:4MiB"})
	testbed.Run(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, s.URI)
	testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", "write -P 0 3145727 1", "-c", "write -P 255 3145728 1")
	c := testbed.StartTool(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.URI)
	if code := c.Wait(t, testbed.ToolLimit); code != 1 {
		t.Errorf("exit code %d: %s", code, c.Output())
	}
}

func TestQemuIOPatterns(t *testing.T) {
	commands := []string{
		"write -P 0xaa 0 1M", "write -P 0xbb 512 1024", "write -P 0xcc 1M 2M",
		"read -P 0xaa 0 512", "read -P 0xbb 512 1024", "read -P 0xaa 1536 1047040", "read -P 0xcc 1M 2M",
		"write -z 100k 64k", "read -P 0 100k 64k", "read -P 0xaa 2k 98k", "read -P 0xaa 164k 100k",
		"write -z -u 1M 1M", "read -P 0 1M 1M", "read -P 0xcc 2M 1M",
		"write -f -P 0xdd 3M 64k", "read -P 0xdd 3M 64k", // FUA
		"write -z -f 3M 4k", "read -P 0 3M 4k", "read -P 0xdd 3149824 60k",
		"writev -P 0xee 4M 512 1024 4096 65536", "readv -P 0xee 4M 512 1024 4096 65536",
		"discard 4M 1M", "flush",
		"aio_write -P 0x11 5M 1M", "aio_write -P 0x22 6M 1M", "aio_flush", "read -P 0x11 5M 1M", "read -P 0x22 6M 1M",
		"write -P 0x33 8388096 512", "read -P 0x33 8388096 512", // the last sector
		"write -P 0x44 4097 3", "read -P 0x44 4097 3", "read -P 0xaa 4100 1000", // no sector at all
	}
	var args []string
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	for _, c := range []struct {
		name string
		disk func(testing.TB) testbed.Disk
	}{{"memory", testbed.MemoryDisk("8MiB")}, {"file", testbed.FileDisk(8 << 20)}} {
		t.Run(c.name, func(t *testing.T) {
			testbed.EachWay(t, c.disk, func(t *testing.T, s testbed.Service) {
				out := testbed.Run(t, "qemu-io", append([]string{"-f", "raw", s.URI}, args...)...)
				if strings.Contains(out, "failed") {
					t.Error(out)
				}
				// Another client sees the same.
				testbed.Run(t, "qemu-io", "-r", "-f", "raw", s.URI, "-c", "read -P 0xbb 512 1024", "-c", "read -P 0x33 8388096 512")
				c := testbed.StartTool(t, "qemu-io", "-f", "raw", s.URI, "-c", "read -P 0xbb 511 1024")
				if code := c.Wait(t, testbed.ToolLimit); code != 1 {
					t.Errorf("a wrong pattern is not seen: exit code %d: %s", code, c.Output())
				}
			})
		})
	}
}
