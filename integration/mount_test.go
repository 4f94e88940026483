package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loopDevices is how many loop devices are tried.
const loopDevices = 64

// TestFileSystemOnRemoteDisk mounts a disk at the far end of the chain without
// the kernel's NBD client: nbdfuse makes a file of it, and a loop device a disk
// of that file.
func TestFileSystemOnRemoteDisk(t *testing.T) {
	requiresRoot(t)
	requires(t, "nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "mount", "umount")
	image := sparseFile(t, 64<<20)
	s := chainWay.serve(t, program(t), disk{"disk", "file:" + image})
	files := map[string][]byte{"empty": nil, "small": []byte("a line\n"), "large": randomBytes(9<<20 + 1)}
	for i := range 64 {
		files[fmt.Sprintf("many/%02d", i)] = randomBytes(1 + i*777)
	}

	m := attachLoop(t, s.uri)
	run(t, "mkfs.ext4", "-q", "-E", "nodiscard", m.device)
	m.mount(t)
	for name, data := range files {
		path := filepath.Join(m.point, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o600))
	}
	must(t, os.Remove(filepath.Join(m.point, "many/13")))
	delete(files, "many/13")
	m.unmount(t)
	run(t, "fsck.ext4", "-n", "-f", m.device)
	m.detach(t)

	// The same disk on another day: everything of the first mount is new.
	s.attach.stop()
	again := attachLoop(t, attachDisk(t, program(t), s.target, "disk").uri("disk", "nbd+unix"))
	again.mount(t)
	entries, err := os.ReadDir(filepath.Join(again.point, "many"))
	must(t, err)
	if len(entries) != 63 {
		t.Errorf("%d files, not 63", len(entries))
	}
	for name, data := range files {
		checkFile(t, filepath.Join(again.point, name), data)
	}
	again.unmount(t)
	again.detach(t)

	// And without viablk, in the backing file.
	run(t, "fsck.ext4", "-n", "-f", image)
}

// loopMount is an NBD export as a block device of this host.
type loopMount struct {
	fuse   *tool
	file   string // of nbdfuse
	device string // of the loop driver; empty when detached
	point  string // where it is to be mounted
	inUse  bool   // it is mounted
}

// attachLoop makes a block device of an export. It is taken apart when the test
// ends, however it ends.
func attachLoop(t testing.TB, uri string) *loopMount {
	t.Helper()
	place := folder(t)
	m := &loopMount{file: filepath.Join(place, "fuse", "disk"), point: filepath.Join(place, "mnt")}
	must(t, os.Mkdir(filepath.Dir(m.file), 0o700))
	must(t, os.Mkdir(m.point, 0o700))
	t.Cleanup(func() {
		if m.inUse {
			m.unmount(t)
		}
		m.detach(t)
	})
	m.fuse = startTool(t, "nbdfuse", m.file, uri)
	eventually(t, "the file of nbdfuse", func() (any, bool) {
		_, err := os.Stat(m.file)
		return m.fuse.output(), err == nil
	})
	var refusals []string
	for i := range loopDevices {
		device := fmt.Sprintf("/dev/loop%d", i)
		if _, err := os.Stat(device); err != nil {
			break
		}
		c := startTool(t, "losetup", device, m.file)
		if c.wait(t, toolLimit) == 0 {
			m.device = device
			return m
		}
		refusals = append(refusals, c.output())
	}
	t.Fatalf("no free loop device:\n%s", strings.Join(refusals, ""))
	return nil
}

func (m *loopMount) mount(t testing.TB) {
	t.Helper()
	run(t, "mount", "-t", "ext4", m.device, m.point)
	m.inUse = true
}

func (m *loopMount) unmount(t testing.TB) {
	t.Helper()
	m.inUse = false
	run(t, "umount", m.point)
}

// detach takes the device apart.
func (m *loopMount) detach(t testing.TB) {
	t.Helper()
	if m.device != "" {
		device := m.device
		m.device = ""
		run(t, "losetup", "-d", device)
	}
	if m.fuse == nil {
		return
	}
	select {
	case <-m.fuse.ended:
		return
	default:
	}
	// The loop driver may still hold the file for a moment.
	eventually(t, "the end of nbdfuse", func() (any, bool) {
		c := startTool(t, "umount", filepath.Dir(m.file))
		return c.output(), c.wait(t, toolLimit) == 0
	})
	if code := m.fuse.wait(t, toolLimit); code != 0 {
		t.Errorf("nbdfuse: exit code %d: %s", code, m.fuse.output())
	}
}
