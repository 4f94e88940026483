package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// fullDisk is a block device on which a write back fails: a loop device whose
// sparse image lies on a file system without room.
type fullDisk struct {
	point, device string
}

func newFullDisk(t *testing.T) *fullDisk {
	t.Helper()
	testbed.RequiresRoot(t)
	testbed.Requires(t, "losetup")
	d := &fullDisk{point: t.TempDir()}
	testbed.Must(t, unix.Mount("viablk-test", d.point, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { testbed.Must(t, unix.Unmount(d.point, 0)) })
	image := filepath.Join(d.point, "image")
	testbed.Must(t, os.WriteFile(image, nil, 0o600))
	testbed.Must(t, os.Truncate(image, diskSize))
	d.device = strings.TrimSpace(testbed.Run(t, "losetup", "--find", "--show", image))
	t.Cleanup(func() { testbed.Run(t, "losetup", "-d", d.device) })
	return d
}

// heal makes room: what is written from now on is kept.
func (d *fullDisk) heal(t *testing.T) {
	t.Helper()
	testbed.Must(t, unix.Mount("viablk-test", d.point, "tmpfs", unix.MS_REMOUNT, "size=64m"))
}

// TestFailedFlushStaysFailed: a disk loses writes that were answered. No flush
// of the client that wrote them succeeds from then on, whether or not one has
// failed before the target ends, and however it ends, although the disk is well
// again.
func TestFailedFlushStaysFailed(t *testing.T) {
	for _, flushed := range []bool{true, false} {
		for _, killed := range []bool{true, false} {
			name := map[bool]string{true: "flush seen, ", false: "no flush, "}[flushed] + map[bool]string{true: "killed", false: "ended"}[killed]
			t.Run(name, func(t *testing.T) {
				disk := newFullDisk(t)
				listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
				target := func() *testbed.Process {
					return testbed.StartBinary(t, testbed.Program(t), "target", "--listen", listen, "--admin", filepath.Join(testbed.Folder(t), "a"),
						"--state-folder", filepath.Dir(disk.point), "--export", "disk=file:"+disk.device)
				}
				p := target()
				a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--reconnect-delay", "50ms")
				k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
				k.Ask("fill 0 2097152 1", "ok")
				if flushed {
					k.Ask("flush", "EIO")
					k.Ask("flush", "EIO")
				}
				if killed {
					p.Crash()
				} else {
					p.Signal(unix.SIGTERM)
					if code := p.ExitCode(); code == 0 {
						t.Errorf("the target ends with exit code 0, and has lost writes\n%s", p.Output())
					}
				}
				disk.heal(t)
				p = target()
				k.Ask("flush", "EIO")
				k.Ask("flush", "EIO")
				if reason := inState(t, a, initiator.StateFailed); !strings.Contains(reason, "not flushed may be lost") {
					t.Errorf("status gives the reason %q", reason)
				}
				k.Disconnect()
				a.Stop()
				// A client that wrote none of that has a disk that works.
				a = testbed.AttachDisk(t, testbed.Program(t), p, "disk")
				k = testbed.Connect(t, a.URI("disk", "nbd+unix"))
				k.Ask("fill 0 2097152 2", "ok")
				k.Ask("flush", "ok")
				k.Ask("check 0 2097152 2", "ok")
				k.Disconnect()
				a.Stop()
				p.Stop()
			})
		}
	}
}
