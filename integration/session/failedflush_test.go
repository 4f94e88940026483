package session

import (
	"os"
	"path/filepath"
	"slices"
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

// lostDisk is a disk that loses answered writes, and its target.
type lostDisk struct {
	*fullDisk
	t      *testing.T
	listen []string
	target *testbed.Process
	admin  string
}

func newLostDisk(t *testing.T) *lostDisk {
	folder := testbed.Folder(t)
	d := &lostDisk{fullDisk: newFullDisk(t), t: t, listen: []string{
		"--listen", "via+shm:///?socket=" + filepath.Join(folder, "v"), "--listen", "nbd+unix:///?socket=" + filepath.Join(folder, "n"),
	}}
	d.start()
	return d
}

// start starts the target.
func (d *lostDisk) start(more ...string) {
	d.t.Helper()
	d.admin = filepath.Join(testbed.Folder(d.t), "a")
	d.target = testbed.StartBinary(d.t, testbed.Program(d.t), slices.Concat([]string{
		"target", "--admin", d.admin, "--state-folder", filepath.Dir(d.point), "--export", "disk=file:" + d.device,
	}, d.listen, more)...)
}

// end ends the target, which fails, because it has lost writes.
func (d *lostDisk) end() {
	d.t.Helper()
	d.target.Signal(unix.SIGTERM)
	if code := d.target.ExitCode(); code == 0 {
		d.t.Errorf("the target ends with exit code 0, and has lost writes\n%s", d.target.Output())
	}
}

// write has a client write what the disk loses. The client asks with ask from
// then on.
func (d *lostDisk) write(uri string, flushed bool) (ask func(command, answer string)) {
	d.t.Helper()
	k := testbed.Connect(d.t, uri)
	k.Ask("fill 0 2097152 1", "ok")
	if flushed {
		k.Ask("flush", "EIO")
		k.Ask("flush", "EIO")
	}
	return k.Ask
}

// replace ends the target and starts another, whose disk is well.
func (d *lostDisk) replace(killed bool) {
	d.t.Helper()
	if killed {
		d.target.Crash()
	} else {
		d.end()
	}
	d.heal(d.t)
	d.start()
}

// handOver has another target take over, whose predecessor cannot flush. The
// disk is well after that.
func (d *lostDisk) handOver() {
	d.t.Helper()
	before := d.target
	d.start("--takeover", d.admin)
	if code := before.ExitCode(); code == 0 {
		d.t.Errorf("the target ends with exit code 0, and has lost writes\n%s", before.Output())
	}
	d.heal(d.t)
}

// accept has a person accept the loss.
func (d *lostDisk) accept() {
	d.t.Helper()
	d.end()
	testbed.Succeed(d.t, testbed.StartPath(d.t, nil, testbed.Program(d.t), "identity", "accept", "--state-folder", filepath.Dir(d.point), d.device))
	d.start()
}

// fails checks that a client gets no flush.
func (d *lostDisk) fails(uri string) {
	d.t.Helper()
	k := testbed.Connect(d.t, uri)
	k.Ask("flush", "EIO")
	k.Ask("flush", "EIO")
	k.Disconnect()
}

// works checks that a client has a disk that works.
func (d *lostDisk) works(uri string) {
	d.t.Helper()
	k := testbed.Connect(d.t, uri)
	k.Ask("fill 0 2097152 2", "ok")
	k.Ask("flush", "ok")
	k.Ask("check 0 2097152 2", "ok")
	k.Disconnect()
}

// TestFailedFlushStaysFailed: a disk loses writes that were answered. No flush
// of any client succeeds from then on, whether or not one has failed before the
// target ends, and however it ends, although the disk is well again: an NBD
// client that reconnects looks like a new one. A person ends that.
func TestFailedFlushStaysFailed(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name string
		run  func(t *testing.T, d *lostDisk, flushed, killed bool)
	}{
		{"initiator", failedFlushOfInitiator},
		{"initiator is replaced", failedFlushOfReplaced},
		{"NBD", failedFlushOverNBD},
	} {
		for _, flushed := range []bool{true, false} {
			for _, killed := range []bool{true, false} {
				name := map[bool]string{true: "flush seen, ", false: "no flush, "}[flushed] + map[bool]string{true: "killed", false: "ended"}[killed]
				t.Run(way.name+", "+name, func(t *testing.T) { way.run(t, newLostDisk(t), flushed, killed) })
			}
		}
	}
	t.Run("NBD, taken over", func(t *testing.T) {
		d := newLostDisk(t)
		uri := d.target.URI("disk", "nbd+unix")
		d.write(uri, false)
		d.handOver()
		d.fails(uri)
		d.accept()
		d.works(uri)
	})
}

func failedFlushOfInitiator(t *testing.T, d *lostDisk, flushed, killed bool) {
	a := testbed.AttachDisk(t, testbed.Program(t), d.target, "disk", "--reconnect-delay", "50ms")
	ask := d.write(a.URI("disk", "nbd+unix"), flushed)
	d.replace(killed)
	ask("flush", "EIO")
	ask("flush", "EIO")
	if reason := inState(t, a, initiator.StateFailed); !strings.Contains(reason, "not flushed may be lost") {
		t.Errorf("status gives the reason %q", reason)
	}
	d.accept()
	ask("flush", "EIO")
	a.Stop()
	a = testbed.AttachDisk(t, testbed.Program(t), d.target, "disk")
	d.works(a.URI("disk", "nbd+unix"))
	a.Stop()
}

func failedFlushOfReplaced(t *testing.T, d *lostDisk, flushed, killed bool) {
	a := testbed.AttachDisk(t, testbed.Program(t), d.target, "disk")
	d.write(a.URI("disk", "nbd+unix"), flushed)
	a.Crash()
	d.replace(killed)
	a = testbed.AttachDisk(t, testbed.Program(t), d.target, "disk")
	d.fails(a.URI("disk", "nbd+unix"))
	a.Crash()
	d.accept()
	a = testbed.AttachDisk(t, testbed.Program(t), d.target, "disk")
	d.works(a.URI("disk", "nbd+unix"))
	a.Stop()
}

func failedFlushOverNBD(t *testing.T, d *lostDisk, flushed, killed bool) {
	uri := d.target.URI("disk", "nbd+unix")
	d.write(uri, flushed)
	d.replace(killed)
	d.fails(uri)
	d.accept()
	d.works(uri)
}
