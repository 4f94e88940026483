package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// loopDevices is how many loop devices are tried.
const loopDevices = 64

// TestFileSystemOnRemoteDisk mounts a disk at the far end of the chain without
// the kernel's NBD client: nbdfuse makes a file of it, and a loop device a disk
// of that file.
func TestFileSystemOnRemoteDisk(t *testing.T) {
	testbed.RequiresRoot(t)
	testbed.Requires(t, "nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "mount", "umount")
	image := testbed.SparseFile(t, 64<<20)
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image})
	files := map[string][]byte{"empty": nil, "small": []byte("a line\n"), "large": testbed.RandomBytes(9<<20 + 1)}
	for i := range 64 {
		files[fmt.Sprintf("many/%02d", i)] = testbed.RandomBytes(1 + i*777)
	}

	m := attachLoop(t, s.URI)
	testbed.Run(t, "mkfs.ext4", "-q", "-E", "nodiscard", m.device)
	m.mount(t)
	for name, data := range files {
		path := filepath.Join(m.point, name)
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testbed.Must(t, os.WriteFile(path, data, 0o600))
	}
	testbed.Must(t, os.Remove(filepath.Join(m.point, "many/13")))
	delete(files, "many/13")
	m.unmount(t)
	testbed.Run(t, "fsck.ext4", "-n", "-f", m.device)
	m.detach(t)

	// The same disk on another day: everything of the first mount is new.
	s.Attach.Stop()
	again := attachLoop(t, testbed.AttachDisk(t, testbed.Program(t), s.Target, "disk").URI("disk", "nbd+unix"))
	again.mount(t)
	entries, err := os.ReadDir(filepath.Join(again.point, "many"))
	testbed.Must(t, err)
	if len(entries) != 63 {
		t.Errorf("%d files, not 63", len(entries))
	}
	for name, data := range files {
		testbed.CheckFile(t, filepath.Join(again.point, name), data)
	}
	again.unmount(t)
	again.detach(t)

	// And without viablk, in the backing file.
	testbed.Run(t, "fsck.ext4", "-n", "-f", image)
}

// loopMount is an NBD export as a block device of this host.
type loopMount struct {
	fuse   *testbed.Tool
	file   string // of nbdfuse
	device string // of the loop driver; empty when detached
	point  string // where it is to be mounted
	inUse  bool   // it is mounted
}

// attachLoop makes a block device of an export. It is taken apart when the test
// ends, however it ends.
func attachLoop(t testing.TB, uri string) *loopMount {
	t.Helper()
	place := testbed.Folder(t)
	m := &loopMount{file: filepath.Join(place, "fuse", "disk"), point: filepath.Join(place, "mnt")}
	testbed.Must(t, os.Mkdir(filepath.Dir(m.file), 0o700))
	testbed.Must(t, os.Mkdir(m.point, 0o700))
	t.Cleanup(func() {
		if m.inUse {
			m.unmount(t)
		}
		m.detach(t)
	})
	m.fuse = testbed.StartTool(t, "nbdfuse", m.file, uri)
	testbed.Eventually(t, "the file of nbdfuse", func() (any, bool) {
		_, err := os.Stat(m.file)
		return m.fuse.Output(), err == nil
	})
	var refusals []string
	for i := range loopDevices {
		device := fmt.Sprintf("/dev/loop%d", i)
		if _, err := os.Stat(device); err != nil {
			break
		}
		c := testbed.StartTool(t, "losetup", device, m.file)
		if c.Wait(t, testbed.ToolLimit) == 0 {
			m.device = device
			return m
		}
		refusals = append(refusals, c.Output())
	}
	t.Fatalf("no free loop device:\n%s", strings.Join(refusals, ""))
	return nil
}

func (m *loopMount) mount(t testing.TB) {
	t.Helper()
	testbed.Run(t, "mount", "-t", "ext4", m.device, m.point)
	m.inUse = true
}

func (m *loopMount) unmount(t testing.TB) {
	t.Helper()
	m.inUse = false
	testbed.Run(t, "umount", m.point)
}

// detach takes the device apart.
func (m *loopMount) detach(t testing.TB) {
	t.Helper()
	if m.device != "" {
		device := m.device
		m.device = ""
		testbed.Run(t, "losetup", "-d", device)
	}
	if m.fuse == nil {
		return
	}
	select {
	case <-m.fuse.Ended:
		return
	default:
	}
	// The loop driver may still hold the file for a moment.
	testbed.Eventually(t, "the end of nbdfuse", func() (any, bool) {
		c := testbed.StartTool(t, "umount", filepath.Dir(m.file))
		return c.Output(), c.Wait(t, testbed.ToolLimit) == 0
	})
	if code := m.fuse.Wait(t, testbed.ToolLimit); code != 0 {
		t.Errorf("nbdfuse: exit code %d: %s", code, m.fuse.Output())
	}
}
