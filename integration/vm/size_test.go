//go:build vm

package vm

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testResize makes a disk larger while its device has no process. The target is
// started again, and the process that waited for it takes the device over. A
// file that changes while no target has it may have been written to: then the
// process is refused.
func (b *deviceBed) testResize(t *testing.T) {
	first := b.attach(t, "small")
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	b.script(t, "truncate -s 12M /tmp/small")
	must(t, b.target.Signal(syscall.SIGTERM))
	if r := b.target.Wait(); !r.OK() {
		t.Error(r)
	}
	second, err := b.Start(b.ctx, "viablk", "attach", diskURI("small"), "--device", "/dev/nbd0", "--reattach", "--reconnect-delay", "20ms")
	must(t, err)
	for !strings.Contains(second.snapshot().Stderr, "event=reattach_waits") {
		select {
		case <-second.ended:
			t.Fatal(second.Wait())
		case <-time.After(pause):
		}
	}
	b.startTarget(t)
	must(t, second.Await(b.ctx, "/dev/nbd0"))
	b.await(t, "12582912", "blockdev", "--getsize64", "/dev/nbd0")
	b.script(t, "dd if=/dev/urandom of=/noise bs=1M count=12 2>/dev/null && dd if=/noise of=/dev/nbd0 bs=1M conv=fsync 2>/dev/null && cmp /noise /tmp/small")
	b.script(t, "mkfs.ext4 -q -F /dev/nbd0 && mount /dev/nbd0 /mnt")
	must(t, second.Signal(syscall.SIGKILL))
	second.Wait()
	b.end(t, b.target)
	b.script(t, "truncate -s 16M /tmp/small")
	b.startTarget(t)
	b.refused(t, 1, "another client wrote to the disk meanwhile", "viablk", "attach", diskURI("small"), "--device", "/dev/nbd0", "--reattach")
	b.run(t, "viablk", "detach", "/dev/nbd0", "--force")
	b.script(t, "umount /mnt")
}

// growingURI names a disk whose target tells of its size at once.
const (
	growingSocket = "/run/g.sock"
	growingURI    = "via+shm:///grows?socket=" + growingSocket
)

// startGrowing starts that target.
func (b *deviceBed) startGrowing(t *testing.T) *Command {
	t.Helper()
	target, err := b.Start(b.ctx, "viablk", "target", "--admin", "none", "--listen", "via+shm:///?socket="+growingSocket,
		"--keepalive", "500ms", "--export", "grows=file:/tmp/grows")
	must(t, err)
	b.await(t, "grows", "viablk", "list", "via+shm:///?socket="+growingSocket)
	return target
}

// attachAs attaches a disk as a device and returns the command, when the device
// is there.
func (b *deviceBed) attachAs(t *testing.T, device, uri string, args ...string) *Command {
	t.Helper()
	c, err := b.Start(b.ctx, append([]string{"viablk", "attach", uri, "--device", device}, args...)...)
	must(t, err)
	b.awaitOutput(t, c, device)
	return c
}

// awaitOutput waits until a command has written a text.
func (b *deviceBed) awaitOutput(t *testing.T, c *Command, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	must(t, c.Await(ctx, text))
}

// end ends a command by SIGTERM, in peace.
func (b *deviceBed) end(t *testing.T, c *Command) {
	t.Helper()
	must(t, c.Signal(syscall.SIGTERM))
	if r := c.Wait(); !r.OK() {
		t.Error(r)
	}
}

// testGrow has a mounted device follow the size of its disk.
func (b *deviceBed) testGrow(t *testing.T) {
	b.script(t, "truncate -s 16M /tmp/grows")
	target := b.startGrowing(t)
	c := b.attachAs(t, "/dev/nbd0", growingURI)
	b.script(t, "mkfs.ext4 -q /dev/nbd0 && mount /dev/nbd0 /mnt && truncate -s 48M /tmp/grows")
	b.await(t, "50331648", "blockdev", "--getsize64", "/dev/nbd0")
	b.script(t, "resize2fs /dev/nbd0 2>/dev/null && dd if=/dev/urandom of=/mnt/file bs=1M count=20 conv=fsync 2>/dev/null && sha256sum /mnt/file > /sum")
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.script(t, "truncate -s 8M /tmp/grows")
	b.await(t, "8388608", "blockdev", "--getsize64", "/dev/nbd0")
	b.script(t, "[ $(dd if=/dev/nbd0 bs=1M 2>/dev/null | wc -c) = 8388608 ]")
	b.detach(t, c)
	b.end(t, target)
}

// testGrownAtTakeover has the disk grow while the process of a mounted device
// is replaced, with requests in flight, one connection and no timeout: the
// kernel gets the connection, which these need, before it is told the size.
func (b *deviceBed) testGrownAtTakeover(t *testing.T) {
	first := b.attach(t, "disk")
	// After these milliseconds it retransmits, in place of 30 s.
	b.script(t, "mount /dev/nbd0 /mnt && echo 4000 > /sys/block/nbd0/queue/io_timeout")
	must(t, b.target.Signal(syscall.SIGSTOP))
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	b.awaitBusy(t)
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	size := b.grow(t, 32<<20)
	must(t, b.target.Signal(syscall.SIGCONT))
	second := b.attach(t, "disk", "--reattach")
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	b.await(t, size, "blockdev", "--getsize64", "/dev/nbd0")
	b.script(t, "resize2fs /dev/nbd0 2>/dev/null && umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, second)
}

// testLostAmidGrowth kills a target when its disk has just grown, and has
// requests wait for it: the kernel waits for nothing that other devices need,
// and the device has the new size when the target is back.
func (b *deviceBed) testLostAmidGrowth(t *testing.T) {
	b.script(t, "truncate -s 16M /tmp/grows")
	target := b.startGrowing(t)
	c := b.attachAs(t, "/dev/nbd0", growingURI, "--reconnect-delay", "100ms")
	b.script(t, "mkfs.ext4 -q -F /dev/nbd0 && mount /dev/nbd0 /mnt && truncate -s 24M /tmp/grows")
	b.await(t, `"size": 25165824,`, "viablk", "status", "-o", "json")
	must(t, target.Signal(syscall.SIGKILL))
	target.Wait()
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	b.awaitBusy(t)
	other := b.attachAs(t, "/dev/nbd1", diskURI("small"), "--admin", "none")
	b.run(t, "viablk", "detach", "/dev/nbd1")
	if r := other.Wait(); !r.OK() {
		t.Error(r)
	}
	target = b.startGrowing(t)
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	b.await(t, "25165824", "blockdev", "--getsize64", "/dev/nbd0")
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, c)
	b.end(t, target)
}

// grow makes the first disk larger, and returns its size.
func (b *deviceBed) grow(t *testing.T, bytes int) string {
	t.Helper()
	size := b.script(t, fmt.Sprintf("truncate -s $(($(stat -c %%s /tmp/disk) + %d)) /tmp/disk; stat -c %%s /tmp/disk", bytes))
	return strings.TrimSpace(size)
}
