package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/integration/testbed"
)

// frozenDisk is a file of a file system that is frozen and thawed: a write to
// it sleeps in the kernel, uninterruptibly.
type frozenDisk struct {
	point string
	path  string
	fd    int // of the file system
}

// Requests of ioctl(2), of linux/fs.h.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

func newFrozenDisk(t *testing.T) *frozenDisk {
	t.Helper()
	testbed.RequiresRoot(t)
	testbed.Requires(t, "mkfs.ext4", "losetup")
	d := &frozenDisk{point: t.TempDir()}
	image := testbed.SparseFile(t, 64<<20)
	testbed.Run(t, "mkfs.ext4", "-q", image)
	device := strings.TrimSpace(testbed.Run(t, "losetup", "--find", "--show", image))
	t.Cleanup(func() { testbed.Run(t, "losetup", "-d", device) })
	testbed.Must(t, unix.Mount(device, d.point, "ext4", 0, ""))
	t.Cleanup(func() { testbed.Must(t, unix.Unmount(d.point, 0)) })
	d.path = filepath.Join(d.point, "disk")
	testbed.Must(t, os.WriteFile(d.path, make([]byte, 4<<20), 0o600))
	fd, err := unix.Open(d.point, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	testbed.Must(t, err)
	d.fd = fd
	t.Cleanup(func() { testbed.Must(t, unix.Close(fd)) })
	return d
}

func (d *frozenDisk) freeze(t *testing.T) {
	t.Helper()
	testbed.Must(t, unix.IoctlSetInt(d.fd, ioctlFreeze, 0))
	t.Cleanup(func() { _ = unix.IoctlSetInt(d.fd, ioctlThaw, 0) }) // before processes are awaited
}

func (d *frozenDisk) thaw(t *testing.T) {
	t.Helper()
	testbed.Must(t, unix.IoctlSetInt(d.fd, ioctlThaw, 0))
}

// start starts a target with the disk, and a neighbour in memory.
func (d *frozenDisk) start(t *testing.T, listen string) *testbed.Process {
	t.Helper()
	return testbed.StartBinary(t, testbed.Program(t), "target", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", listen, "--export", "disk=file:"+d.path, "--export", "neighbour=memory:1MiB", "--io-timeout", "1s")
}

// TestFileSystemIsFrozen: writes to a file system that is frozen wait in the
// kernel, where nothing interrupts them. The target is alive meanwhile: no
// session is lost, its other disks answer, and the writes are answered when the
// file system is thawed. A target that is killed amid them ends then, and its
// successor executes them.
func TestFileSystemIsFrozen(t *testing.T) {
	for provider, listen := range map[string]string{
		"shm":  "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"),
		"roce": "via+roce://127.77.62.2/",
	} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			d := newFrozenDisk(t)
			p := d.start(t, listen)
			a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI("disk", "via+"+provider), "disk")
			n := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI("neighbour", "via+"+provider), "neighbour")
			k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
			neighbour := testbed.Connect(t, n.URI("neighbour", "nbd+unix"))
			overdue := func() {
				t.Helper()
				testbed.Eventually(t, "the age of the write", func() (any, bool) {
					st := p.Status()
					return st, st.Targets[0].Exports[0].OldestRequest > 2
				})
			}

			d.freeze(t)
			k.Send("fill 0 65536 7")
			overdue()
			neighbour.Ask("fill 0 65536 8", "ok")
			d.thaw(t)
			k.Expect("ok")
			for _, x := range []*testbed.Process{a, n} {
				if st := x.Status().Initiators[0]; st.SessionLosses != 0 || st.Stats.Errors != 0 {
					t.Errorf("initiator: %+v", st)
				}
			}

			d.freeze(t)
			k.Send("fill 65536 65536 9")
			overdue()
			p.Signal(unix.SIGKILL)
			d.thaw(t)
			p.ExitCode()
			d.start(t, listen)
			k.Expect("ok")
			k.Ask("flush", "ok")
			k.Ask("check 0 65536 7", "ok")
			k.Ask("check 65536 65536 9", "ok")
			if st := a.Status().Initiators[0]; st.Stats.Errors != 0 {
				t.Errorf("initiator: %+v", st)
			}
			k.Disconnect()
			neighbour.Disconnect()
		})
	}
}

// TestFileSystemIsFrozenUnderNBD: so does a target of a plain NBD client, whose
// write waits in the kernel on the goroutine of the connection.
func TestFileSystemIsFrozenUnderNBD(t *testing.T) {
	t.Parallel()
	d := newFrozenDisk(t)
	p := d.start(t, "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "n"))
	k := testbed.Connect(t, p.URI("disk", "nbd+unix"))
	neighbour := testbed.Connect(t, p.URI("neighbour", "nbd+unix"))
	for i, write := range []string{"fill 0 65536 7", "fill 65536 65536 8"} { // the first makes the client the writer
		d.freeze(t)
		k.Send(write)
		testbed.Eventually(t, "the age of the write", func() (any, bool) {
			st := p.Status()
			return st, st.Disks[0].OldestRequest > 2
		})
		testbed.Eventually(t, "the log", func() (any, bool) {
			n := strings.Count(p.Output(), "event=disk_overdue export=disk")
			return p.Output(), n == i+1
		})
		neighbour.Ask("fill 0 65536 8", "ok")
		d.thaw(t)
		k.Expect("ok")
		testbed.Eventually(t, "no age", func() (any, bool) {
			st := p.Status()
			return st, st.Disks[0].OldestRequest == 0
		})
	}
	k.Ask("check 0 65536 7", "ok")
	k.Disconnect()
	neighbour.Disconnect()
}
