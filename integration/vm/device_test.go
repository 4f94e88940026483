//go:build vm

package vm

import (
	"context"
	"strings"
	"syscall"
	"testing"
)

// deviceBed is a machine with the kernel's nbd driver, ext4, and a target of disks.
type deviceBed struct {
	*VM
	ctx    context.Context
	target *Command
}

// targetSocket is where the target of a deviceBed listens, and diskURI names a disk
// of it.
const targetSocket = "/run/t.sock"

func diskURI(name string) string { return "via+shm:///" + name + "?socket=" + targetSocket }

// TestDevice is remote disks as block devices of the kernel. The order matters: the
// driver is not there at first.
func TestDevice(t *testing.T) {
	v := Boot(t, Config{
		Modules: []string{"nbd nbds_max=4", "ext4"},
		Tools: []string{
			"e2fsprogs/mkfs.ext4", "e2fsprogs/e2fsck", "nbd-client/nbd-client", "util-linux/setpriv", "util-linux/blockdev",
		},
		Files: map[string]string{"/usr/bin/viablk": Program(t, modulePath+"/cmd/viablk")},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	defer cancel()
	bed := &deviceBed{VM: v, ctx: ctx}
	v.Must("sh", "-c", "truncate -s 64M /disk && truncate -s 8M /small && mkdir -p /mnt")
	bed.startTarget(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"life", bed.testLife},
	} {
		if !t.Run(test.name, test.run) {
			break // it may have left its device
		}
	}
}

// startTarget starts the target.
func (b *deviceBed) startTarget(t *testing.T) {
	t.Helper()
	var err error
	b.target, err = b.Start(b.ctx, "viablk", "target", "--admin", "/run/target.sock", "--listen", "via+shm:///?socket="+targetSocket,
		"--listen", "nbd://127.0.0.1/", "--export", "disk=file:/disk", "--export", "small=file:/small")
	must(t, err)
	must(t, b.Await(b.ctx, "disk", "viablk", "list", "via+shm:///?socket="+targetSocket))
}

// attach attaches a disk and returns the command, when the device is there.
func (b *deviceBed) attach(t *testing.T, disk string, args ...string) *Command {
	t.Helper()
	c, err := b.Start(b.ctx, append([]string{"viablk", "attach", diskURI(disk), "--device", "/dev/nbd0"}, args...)...)
	must(t, err)
	if err := c.Await(b.ctx, "/dev/nbd"); err != nil {
		t.Fatalf("%v: %v", err, c.Wait())
	}
	return c
}

// detach detaches the first device, after which the process that served it has ended
// in peace.
func (b *deviceBed) detach(t *testing.T, served *Command) {
	t.Helper()
	b.Must("viablk", "detach", "/dev/nbd0")
	if r := served.Wait(); !r.OK() {
		t.Error(r)
	}
}

// script runs a script of the shell, which must succeed.
func (b *deviceBed) script(t *testing.T, text string) string {
	t.Helper()
	return b.Must("sh", "-ec", text)
}

// refused runs a command that is to be refused in one line with an exit code.
func (b *deviceBed) refused(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	r := b.Run(b.ctx, args...)
	if r.Err != nil || r.Code != code || !strings.Contains(r.Stderr, text) || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("want exit code %d and one line with %q: %v", code, text, r)
	}
}

// testLife makes a file system on a device, and looks at the device meanwhile.
func (b *deviceBed) testLife(t *testing.T) {
	c, err := b.Start(b.ctx, "viablk", "attach", diskURI("disk"), "--device", "auto")
	must(t, err)
	must(t, c.Await(b.ctx, "/dev/nbd0"))
	b.script(t, `
		[ $(blockdev --getsize64 /dev/nbd0) = 67108864 ] && [ $(blockdev --getss /dev/nbd0) = 512 ]
		grep -q 'write back' /sys/block/nbd0/queue/write_cache && grep -qx 1 /sys/block/nbd0/queue/fua
		mkfs.ext4 -q /dev/nbd0 && mount -o discard /dev/nbd0 /mnt
		dd if=/dev/urandom of=/mnt/file bs=64k count=512 2>/dev/null && sha256sum /mnt/file > /sum`)
	status := b.Must("viablk", "status", "-o", "json")
	for _, want := range []string{`"device": "/dev/nbd0"`, `"backend": "via+shm:///disk?socket=/run/t.sock"`, `"connections": 1`} {
		if !strings.Contains(status, want) {
			t.Errorf("no %s in the status: %s", want, status)
		}
	}
	b.refused(t, 75, "/dev/nbd0 is mounted at /mnt: unmount it first", "viablk", "detach", "/dev/nbd0")
	b.script(t, `
		rm /mnt/file && fstrim /mnt || true
		dd if=/dev/urandom of=/mnt/file bs=64k count=512 2>/dev/null && sha256sum /mnt/file > /sum
		umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt`)
	b.detach(t, c)
	b.script(t, "[ ! -e /sys/block/nbd0/pid ]")
	b.refused(t, 2, "/dev/nbd0: not attached", "viablk", "detach", "/dev/nbd0")
	// What was written is at the target.
	c = b.attach(t, "disk")
	b.script(t, "mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	must(t, c.Signal(syscall.SIGTERM))
	if r := c.Wait(); !r.OK() {
		t.Error(r)
	}
	b.script(t, "[ ! -e /sys/block/nbd0/pid ]")
}
