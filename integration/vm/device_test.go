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

// deviceBed is a machine with the kernel's nbd driver, ext4, and a target of
// disks.
type deviceBed struct {
	*VM
	ctx    context.Context
	target *Command
}

// targetSocket is where the target of a deviceBed listens, targetStatus its
// status socket, targetMetrics where it serves metrics, and diskURI names a
// disk of it.
const (
	targetSocket  = "/run/t.sock"
	targetStatus  = "/run/target.sock"
	targetMetrics = "127.0.0.1:9810"
)

func diskURI(name string) string { return "via+shm:///" + name + "?socket=" + targetSocket }

// TestDevice is remote disks as block devices of the kernel. The order matters:
// the driver is not there at first.
func TestDevice(t *testing.T) {
	t.Parallel()
	b := bootDevices(t, "")
	b.test(t, []deviceTest{
		{"refusals", b.testRefusals},
		{"life", b.testLife},
		{"read-only", b.testReadOnly},
		{"load", b.testLoad},
		{"process killed", b.testProcessKilled},
		{"process ended", b.testProcessEnded},
		{"another writer", b.testAnotherWriter},
		{"target stands still", b.testStall},
		{"target restarted with another size", b.testResize},
		{"disk grows and shrinks", b.testGrow},
		{"disk grown at takeover", b.testGrownAtTakeover},
		{"target lost amid growth", b.testLostAmidGrowth},
		{"several connections", b.testConnections},
		{"target killed", b.testTargetKilled},
		{"target returns", b.testTargetReturns},
		{"nbd-client", b.testForeignClient},
		{"nbdkit", b.testForeignServer},
		{"links", b.testLinks},
		{"restarts", b.testRestarts},
		{"attach latency", b.testAttachLatency},
	})
}

// TestDeviceOnNextKernel is the part of TestDevice that a kernel since 6.9 may
// answer otherwise: it freezes a device whose size changes.
func TestDeviceOnNextKernel(t *testing.T) {
	t.Parallel()
	b := bootDevices(t, KernelOfNext)
	b.test(t, []deviceTest{
		{"life", b.testLife},
		{"process killed", b.testProcessKilled},
		{"disk grown at takeover", b.testGrownAtTakeover},
		{"target lost amid growth", b.testLostAmidGrowth},
	})
}

// deviceTest is a test of a deviceBed.
type deviceTest struct {
	name string
	run  func(*testing.T)
}

// test runs tests up to the first that fails: it may have left its device.
func (b *deviceBed) test(t *testing.T, tests []deviceTest) {
	for _, test := range tests {
		if !t.Run(test.name, test.run) {
			break
		}
	}
}

// bootDevices boots a machine with the kernel of a package.
func bootDevices(t *testing.T, kernel string) *deviceBed {
	t.Helper()
	limit := 14*waitLimit + time.Duration(*restartCycles)*waitLimit + time.Duration(*attachRounds)*time.Second // of a host that is busy
	v := Boot(t, Config{
		Kernel:  kernel,
		Memory:  768,
		Limit:   limit + waitLimit,
		Modules: []string{"nbd nbds_max=4", "ext4", "xfs"},
		Tools: []string{
			"e2fsprogs/mkfs.ext4", "e2fsprogs/e2fsck", "e2fsprogs/resize2fs", "nbd-client/nbd-client", "nbdkit/nbdkit", "nbdkit/usr/lib/*/nbdkit/plugins/nbdkit-file-plugin.so", "fio/fio", "xfsprogs/mkfs.xfs", "xfsprogs/xfs_repair", "util-linux/fstrim", "util-linux/setpriv", "util-linux/blockdev",
			"udev/lib/systemd/systemd-udevd", "udev/udevadm", "udev/lib/udev/rules.d/50-udev-default.rules",
		},
		Files: map[string]string{
			"/usr/bin/viablk":                   Program(t, modulePath+"/cmd/viablk"),
			"/usr/bin/worker":                   Program(t, modulePath+"/integration/vm/worker"),
			"/etc/udev/rules.d/60-viablk.rules": "../../contrib/udev/60-viablk.rules",
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	b := &deviceBed{VM: v, ctx: ctx}
	v.Must("sh", "-c", "cd /tmp && truncate -s 64M disk && truncate -s 8M small && truncate -s 320M large && mkdir -p /mnt")
	b.startTarget(t)
	return b
}

// startTarget starts the target.
func (b *deviceBed) startTarget(t *testing.T) {
	t.Helper()
	var err error
	b.target, err = b.Start(b.ctx, "viablk", "target", "--admin", targetStatus, "--listen", "via+shm:///?socket="+targetSocket,
		"--keepalive", "30s", // it is stopped for a while
		"--metrics-listen", targetMetrics,
		"--listen", "nbd://127.0.0.1/", "--export", "disk=file:/tmp/disk", "--export", "small=file:/tmp/small", "--export", "large=file:/tmp/large")
	must(t, err)
	b.await(t, "disk", "viablk", "list", "via+shm:///?socket="+targetSocket)
}

// attach attaches a disk as the first device and returns the command, when the
// device is there.
func (b *deviceBed) attach(t *testing.T, disk string, args ...string) *Command {
	t.Helper()
	return b.attachAs(t, "/dev/nbd0", diskURI(disk), args...)
}

// detach detaches the first device, after which the process that served it has
// ended in peace.
func (b *deviceBed) detach(t *testing.T, served *Command) {
	t.Helper()
	b.run(t, "viablk", "detach", "/dev/nbd0")
	if r := served.Wait(); !r.OK() {
		t.Error(r)
	}
}

// awaitMetric waits until the target, which serves none of the machine's
// devices, tells a state of the first one.
func (b *deviceBed) awaitMetric(t *testing.T, state string) {
	t.Helper()
	b.await(t, fmt.Sprintf("viablk_device_state{device=%q,state=%q} 1\n", "/dev/nbd0", state), "wget", "-qO-", "http://"+targetMetrics+"/metrics")
}

// script runs a script of the shell, which must succeed.
func (b *deviceBed) script(t *testing.T, text string) string {
	t.Helper()
	return b.run(t, "sh", "-ec", text)
}

// run runs a command that must succeed, and returns its output.
func (b *deviceBed) run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	r := b.Run(ctx, args...)
	if !r.OK() {
		t.Fatal(r)
	}
	return r.Stdout
}

// await waits until the output of a command contains a text.
func (b *deviceBed) await(t *testing.T, text string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	must(t, b.Await(ctx, text, args...))
}

// refused runs a command that is to be refused in one line with an exit code.
func (b *deviceBed) refused(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	r := b.Run(ctx, args...)
	if r.Err != nil || r.Code != code || !strings.Contains(r.Stderr, text) || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("want exit code %d and one line with %q: %v", code, text, r)
	}
}

// fill writes a file of 8 MiB of noise to the file system at /mnt and its sum
// to /sum.
const fill = "dd if=/dev/urandom of=/mnt/file bs=64k count=128 conv=fsync 2>/dev/null && sha256sum /mnt/file > /sum; "

// testRefusals are mistakes, each answered by one line. At first the kernel has
// no driver, and the machine none that a newer kernel could load on demand.
func (b *deviceBed) testRefusals(t *testing.T) {
	attach := []string{"viablk", "attach", diskURI("disk"), "--device"}
	b.script(t, "rmmod nbd && mv /usr/lib/modules/nbd.ko /nbd.ko")
	b.refused(t, 78, "the kernel has no nbd driver: load it with modprobe nbd", append(attach, "auto")...)
	b.refused(t, 78, "the kernel has no nbd driver", "viablk", "detach", "/dev/nbd0")
	b.script(t, "mv /nbd.ko /usr/lib/modules/nbd.ko && modprobe nbd nbds_max=4")
	b.refused(t, 64, "out of range: the last device of the nbd driver is /dev/nbd32767", append(attach, "/dev/nbd32768")...)
	b.refused(t, 64, "is neither /dev/nbdN nor auto", append(attach, "/dev/sda")...)
	b.refused(t, 64, "the kernel takes 4096 bytes at most", append(attach, "auto", "--minimum-block", "8k")...)
	b.refused(t, 64, "leave out --maximum-payload", append(attach, "auto", "--maximum-payload", "1M")...)
	b.refused(t, 75, "via+shm:///disk?socket=/run/away.sock: no process listens", "viablk", "attach", "via+shm:///disk?socket=/run/away.sock", "--device", "auto")
	b.refused(t, 77, "the capability CAP_SYS_ADMIN", append([]string{"setpriv", "--reuid", "1000", "--clear-groups"}, append(attach, "auto")...)...)
	b.refused(t, 75, "no such file", "viablk", "detach", "/run/away.sock")
	b.refused(t, 64, "which attaches nothing: end it with SIGTERM", "viablk", "detach", targetStatus)
	if out := b.script(t, "cat /sys/block/nbd*/size | sort -u; ls /sys/block/nbd*/pid 2>/dev/null || true"); out != "0\n" {
		t.Errorf("a refusal left a device: %s", out)
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
		[ $(cat /sys/block/nbd0/queue/discard_max_bytes) -gt 0 ]
		mkfs.ext4 -q -b 4096 /dev/nbd0 && mount /dev/nbd0 /mnt`)
	b.script(t, fill)
	status := b.run(t, "viablk", "status", "-o", "json") + b.run(t, "viablk", "status", "/dev/nbd0", "-o", "json")
	for _, want := range []string{
		`"device": "/dev/nbd0"`, `"backend": "via+shm:///disk?socket=/run/t.sock"`, `"connections": 1`, `"state": "served"`,
	} {
		if !strings.Contains(status, want) {
			t.Errorf("no %s in the status: %s", want, status)
		}
	}
	b.refused(t, 75, "/dev/nbd0 is mounted at /mnt: unmount it first", "viablk", "detach", "/dev/nbd0")
	b.refused(t, 75, "/dev/nbd0 is served by process", "viablk", "attach", diskURI("disk"), "--device", "/dev/nbd0")
	b.refused(t, 75, "/dev/nbd0 is served by process", "viablk", "attach", diskURI("disk"), "--device", "auto", "--reattach")
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, c)
	b.refused(t, 2, "/dev/nbd0: not attached", "viablk", "detach", "/dev/nbd0")
	if r := b.Run(b.ctx, "viablk", "status", "/dev/nbd0"); r.Code != 2 || !strings.Contains(r.Stdout, "detached") {
		t.Error(r)
	}
	// The target has the written data. SIGTERM detaches too.
	c = b.attach(t, "disk")
	b.script(t, "mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	must(t, c.Signal(syscall.SIGTERM))
	if r := c.Wait(); !r.OK() {
		t.Error(r)
	}
	b.script(t, "[ ! -e /sys/block/nbd0/pid ]")
}

// testReadOnly mounts what testLife has left.
func (b *deviceBed) testReadOnly(t *testing.T) {
	c := b.attach(t, "disk", "--read-only", "--minimum-block", "4k")
	b.script(t, `
		[ $(blockdev --getro /dev/nbd0) = 1 ] && [ $(blockdev --getss /dev/nbd0) = 4096 ]
		if dd if=/dev/zero of=/dev/nbd0 bs=4k count=1 2>/dev/null; then exit 1; fi
		mount -o ro /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt`)
	b.detach(t, c)
}

// testLoad is fio on the device, past the kernel's cache, and in a file of xfs,
// through it; then the file is trimmed away at the target.
func (b *deviceBed) testLoad(t *testing.T) {
	c := b.attach(t, "large", "--connections", "2")
	const fio = "fio --minimal --name=v --rw=randwrite --bsrange=4k-128k --iodepth=16 --size=16m --verify=crc32c --do_verify=1 "
	b.script(t, fio+"--filename=/dev/nbd0 --ioengine=libaio --direct=1 > /dev/null")
	b.script(t, "mkfs.xfs -q -f /dev/nbd0 && mount /dev/nbd0 /mnt")
	b.script(t, fio+"--filename=/mnt/file --ioengine=psync --fallocate=none --end_fsync=1 > /dev/null; sha256sum /mnt/file > /xsum")
	b.script(t, "umount /mnt && xfs_repair -n /dev/nbd0 2> /dev/null && mount /dev/nbd0 /mnt && sha256sum -c /xsum")
	b.script(t, `
		before=$(du -k /tmp/large | cut -f1)
		rm /mnt/file && sync && fstrim /mnt
		after=$(du -k /tmp/large | cut -f1)
		[ $after -lt $((before - 12000)) ] && umount /mnt && xfs_repair -n /dev/nbd0 2> /dev/null`)
	b.detach(t, c)
}

// testProcessKilled kills the process of a mounted device in the middle of
// writes, and another one goes on where it was. The target stands still
// meanwhile, so that requests are in flight.
func (b *deviceBed) testProcessKilled(t *testing.T) {
	first := b.attach(t, "disk", "--io-timeout", "5s")
	b.script(t, "mount /dev/nbd0 /mnt")
	must(t, b.target.Signal(syscall.SIGSTOP))
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	b.awaitBusy(t)
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	if r := b.Run(b.ctx, "viablk", "status", "/dev/nbd0"); r.Code != 2 || !strings.Contains(r.Stdout, "waiting") {
		t.Error(r)
	}
	must(t, b.target.Signal(syscall.SIGCONT))
	b.awaitMetric(t, "waiting")
	b.refused(t, 75, "its process is gone: reattach it", "viablk", "attach", diskURI("disk"), "--device", "/dev/nbd0")
	b.refused(t, 75, "/dev/nbd0 is attached to via+shm:///disk", "viablk", "attach", diskURI("small"), "--device", "/dev/nbd0", "--reattach")
	b.refused(t, 75, "/dev/nbd0 is mounted at /mnt", "viablk", "detach", "/dev/nbd0")
	second, err := b.Start(b.ctx, "viablk", "attach", diskURI("disk"), "--device", "auto", "--reattach", "--io-timeout", "5s")
	must(t, err)
	must(t, second.Await(b.ctx, "/dev/nbd0"))
	b.awaitMetric(t, "served")
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, second)
}

// testProcessEnded ends the process of a mounted device with SIGTERM: the
// device stays for the next one.
func (b *deviceBed) testProcessEnded(t *testing.T) {
	first := b.attach(t, "disk")
	b.script(t, "mount /dev/nbd0 /mnt")
	must(t, first.Signal(syscall.SIGTERM))
	if r := first.Wait(); !r.OK() || !strings.Contains(r.Stderr, "its requests wait until it is reattached") {
		t.Error(r)
	}
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	second := b.attach(t, "disk", "--reattach")
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, second)
}

// testAnotherWriter: after another client wrote to the disk of a device that
// waits, no process takes it over, whose kernel would write older blocks.
func (b *deviceBed) testAnotherWriter(t *testing.T) {
	first := b.attach(t, "disk", "--reattach")
	b.script(t, "mount /dev/nbd0 /mnt")
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	other := b.attachAs(t, "/dev/nbd1", diskURI("disk"))
	b.script(t, "dd if=/dev/nbd1 of=/tmp/block bs=4k count=1 iflag=direct 2>/dev/null && dd if=/tmp/block of=/dev/nbd1 bs=4k oflag=direct 2>/dev/null")
	b.run(t, "viablk", "detach", "/dev/nbd1")
	if r := other.Wait(); !r.OK() {
		t.Error(r)
	}
	for _, device := range []string{"/dev/nbd0", "auto"} { // a refusal leaves the record
		b.refused(t, 1, "another client wrote to the disk meanwhile", "viablk", "attach", diskURI("disk"), "--device", device, "--reattach")
	}
	if r := b.Run(b.ctx, "viablk", "status", "/dev/nbd0"); r.Code != 2 || !strings.Contains(r.Stdout, "waiting") {
		t.Error(r)
	}
	b.run(t, "viablk", "detach", "/dev/nbd0", "--force")
	b.script(t, "umount /mnt")
	c := b.attach(t, "disk", "--reattach") // there is nothing to take over
	b.script(t, "e2fsck -fp /dev/nbd0 > /dev/null || [ $? = 1 ]; mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, c)
}

// testStall has the target stand still for longer than the kernel's timeout:
// the kernel drops the connection, gets another when its requests are over, and
// requeues them. The kernel detaches a device that is not open and whose
// process is gone.
func (b *deviceBed) testStall(t *testing.T) {
	const gaveUp = "Connection timed out, retrying"
	before := strings.Count(b.Console(), gaveUp)
	c := b.attach(t, "disk", "--io-timeout", "2s")
	b.script(t, "mount /dev/nbd0 /mnt")
	must(t, b.target.Signal(syscall.SIGSTOP))
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	for strings.Count(b.Console(), gaveUp) == before {
		select {
		case <-c.ended:
			t.Fatal(c.Wait())
		case <-time.After(pause):
		}
	}
	must(t, b.target.Signal(syscall.SIGCONT))
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	if out := b.run(t, "viablk", "status", "-o", "json"); strings.Contains(out, `"replaced": 0`) {
		t.Errorf("no connection was replaced: %s", out)
	}
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	must(t, c.Signal(syscall.SIGKILL))
	c.Wait()
	b.run(t, "viablk", "detach", "/dev/nbd0")
	b.script(t, "[ ! -e /sys/block/nbd0/pid ]")
}

// awaitRequests waits until the device has answered so many requests more.
func (b *deviceBed) awaitRequests(t *testing.T, n int) {
	t.Helper()
	const answered = "set -- $(cat /sys/block/nbd0/stat); echo $(($1 + $5))"
	b.await(t, "enough", "sh", "-c", fmt.Sprintf("%s > /tmp/now; [ -e /tmp/begin ] || cp /tmp/now /tmp/begin; "+
		"[ $(($(cat /tmp/now) - $(cat /tmp/begin))) -ge %d ] && rm /tmp/begin && echo enough", answered, n))
}

// awaitBusy waits until the device has requests in flight.
func (b *deviceBed) awaitBusy(t *testing.T) {
	t.Helper()
	b.await(t, "busy", "sh", "-c", "read r w < /sys/block/nbd0/inflight; [ $((r + w)) -gt 0 ] && echo busy")
}

// testTargetKilled kills the target of a mounted device that does not wait for
// it: requests fail, and what had been synchronised is there again when the
// target is.
func (b *deviceBed) testTargetKilled(t *testing.T) {
	c := b.attach(t, "disk", "--ctrl-loss-tmo", "0s")
	b.script(t, "mount /dev/nbd0 /mnt;"+fill)
	must(t, b.target.Signal(syscall.SIGKILL))
	b.target.Wait()
	// Of the device's own cache, which is not that of files, little is filled.
	r := b.Run(b.ctx, "dd", "if=/dev/nbd0", "of=/dev/null", "bs=4096", "skip=15000", "count=1")
	if r.OK() || !strings.Contains(r.Stderr, "Input/output error") {
		t.Errorf("a read without target: %v", r)
	}
	// The errno of ext4 depends on what it has to read first: EIO, EROFS or
	// ENOSPC.
	if r := b.Run(b.ctx, "dd", "if=/dev/zero", "of=/mnt/lost", "bs=64k", "count=4", "conv=fsync"); r.OK() {
		t.Errorf("a write without target: %v", r)
	}
	b.refused(t, 75, "/dev/nbd0 is mounted at /mnt", "viablk", "detach", "/dev/nbd0")
	b.run(t, "viablk", "detach", "/dev/nbd0", "--force")
	if r := c.Wait(); !r.OK() {
		t.Error(r)
	}
	b.script(t, "umount /mnt")
	b.startTarget(t)
	c = b.attach(t, "disk")
	b.script(t, "e2fsck -fp /dev/nbd0 > /dev/null || [ $? = 1 ]; mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt && e2fsck -fn /dev/nbd0")
	b.detach(t, c)
}

// testTargetReturns kills the target of a mounted device in the middle of
// writes, and ends it in peace, and starts it again: the file system sees
// nothing of that.
func (b *deviceBed) testTargetReturns(t *testing.T) {
	c := b.attach(t, "disk", "--reconnect-delay", "100ms", "--connections", "2")
	b.script(t, "mount /dev/nbd0 /mnt")
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		must(t, b.target.Signal(syscall.SIGSTOP)) // so that requests are in flight
		writer, err := b.Start(b.ctx, "sh", "-ec", fill)
		must(t, err)
		b.awaitBusy(t)
		must(t, b.target.Signal(signal))
		_ = b.target.Signal(syscall.SIGCONT) // of use to one that is not killed
		b.target.Wait()
		// The exit code of a disk that waits is 2.
		b.await(t, fmt.Sprintf(`"session_losses": %d`, i+1), "sh", "-c", "viablk status -o json; [ $? = 2 ]")
		b.startTarget(t)
		if r := writer.Wait(); !r.OK() {
			t.Fatal(r)
		}
		b.script(t, "echo 3 > /proc/sys/vm/drop_caches; sha256sum -c /sum")
	}
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	if strings.Contains(b.run(t, "viablk", "status", "-o", "json"), `"connected": false`) {
		t.Error("the disk is not connected")
	}
	b.detach(t, c)
}

// testConnections gives the kernel several connections, has it lose some, and
// all.
func (b *deviceBed) testConnections(t *testing.T) {
	first := b.attach(t, "disk", "--connections", "8", "--io-timeout", "5s") // and there are two processors
	b.script(t, "mount /dev/nbd0 /mnt;"+fill)
	b.wantConnections(t, 2)
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	second := b.attach(t, "disk", "--reattach", "--io-timeout", "5s")
	b.wantConnections(t, 2)
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum;"+fill+"umount /mnt")
	b.detach(t, second)
}

// wantConnections expects the kernel to have so many connections, each of which
// it can use.
func (b *deviceBed) wantConnections(t *testing.T, n int) {
	t.Helper()
	if out := b.run(t, "viablk", "status", "-o", "json"); !strings.Contains(out, fmt.Sprintf(`"connections": %d,`, n)) {
		t.Errorf("not %d connections: %s", n, out)
	}
	if out := b.script(t, "ls /sys/block/nbd0/mq | wc -l"); out != fmt.Sprintln(n) {
		t.Errorf("the kernel has %s queues", out)
	}
}

// testForeignClient attaches a disk with Debian's client, which we leave alone.
func (b *deviceBed) testForeignClient(t *testing.T) {
	b.run(t, "nbd-client", "-N", "disk", "-C", "3", "127.0.0.1", "/dev/nbd0")
	b.refused(t, 75, "/dev/nbd0 is attached by another program", "viablk", "attach", diskURI("disk"), "--device", "/dev/nbd0")
	b.refused(t, 1, "/dev/nbd0 was attached by another program", "viablk", "detach", "/dev/nbd0")
	b.script(t, "mount /dev/nbd0 /mnt && sha256sum -c /sum;"+fill+"umount /mnt && e2fsck -fn /dev/nbd0 && nbd-client -d /dev/nbd0")
	c := b.attach(t, "disk")
	b.script(t, "mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt && nbd-client -d /dev/nbd0")
	if r := c.Wait(); !r.OK() { // nbd-client detached the device
		t.Error(r)
	}
}

// testLinks has udev make links to a device that /etc/nbdtab describes, and to
// its partition. A device can be attached as soon as it was detached, although
// udev looks at each that changes.
func (b *deviceBed) testLinks(t *testing.T) {
	b.script(t, "/usr/lib/systemd/systemd-udevd --daemon --resolve-names=never && echo 'nbd0 /run/t.sock small _viablk_transport=shm,bs=4096' > /etc/nbdtab")
	c, err := b.Start(b.ctx, "viablk", "attach", "nbd0")
	must(t, err)
	b.await(t, "/dev/nbd0", "readlink", "-f", "/dev/disk/by-viablk/small")
	// A table of one partition, from block 8 on.
	b.script(t, `
		[ $(blockdev --getss /dev/nbd0) = 4096 ]
		{ head -c 446 /dev/zero; printf '\0\0\0\0\203\0\0\0\010\0\0\0\0\1\0\0'; head -c 48 /dev/zero; printf '\125\252'; } > /table
		dd if=/table of=/dev/nbd0 conv=fsync 2>/dev/null && blockdev --rereadpt /dev/nbd0`)
	b.await(t, "/dev/nbd0p1", "readlink", "-f", "/dev/disk/by-viablk/small-part1")
	b.script(t, "mkfs.ext4 -q /dev/disk/by-viablk/small-part1 && mount /dev/nbd0p1 /mnt")
	b.refused(t, 75, "/dev/nbd0 is mounted at /mnt: unmount it first", "viablk", "detach", "/dev/nbd0")
	b.script(t, "umount /mnt")
	b.detach(t, c)
	b.await(t, "gone", "sh", "-c", "[ -e /dev/disk/by-viablk/small ] || echo gone")
	b.script(t, "worker latency -uri '"+diskURI("small")+"' -rounds 10")
}
