//go:build vm

package vm

import (
	"flag"
	"strings"
	"testing"
)

var restartCycles = flag.Int("restart.cycles", 2, "how often each process is ended and started again under load")

// testRestarts ends processes below a mounted file system in peace and starts
// them again: the process of the device, the target, and an NBD server of which
// the kernel is a client. fio, which compares what it reads past all caches,
// gets no error.
func (b *deviceBed) testRestarts(t *testing.T) {
	b.test(t, []deviceTest{
		{"process of the device", b.testRestartedProcess},
		{"target", b.testRestartedTarget},
		{"NBD server", b.testRestartedServer},
	})
}

// testRestartedProcess replaces the process of the device, as its unit does.
func (b *deviceBed) testRestartedProcess(t *testing.T) {
	attach := func() *Command { return b.attach(t, "disk", "--reattach", "--io-timeout", "2s") } // when the kernel retransmits
	c := attach()
	b.restartUnderLoad(t, func() {
		b.end(t, c)
		c = attach()
	})
	b.detach(t, c)
}

func (b *deviceBed) testRestartedTarget(t *testing.T) {
	c := b.attach(t, "disk", "--reconnect-delay", "100ms")
	b.restartUnderLoad(t, func() {
		b.end(t, b.target)
		b.startTarget(t)
	})
	b.detach(t, c)
}

// testRestartedServer has no process of ours at the device but one that moves
// bytes.
func (b *deviceBed) testRestartedServer(t *testing.T) {
	const socket = "/run/plain.sock"
	b.script(t, "truncate -s 64M /tmp/plain")
	start := func() *Command {
		server, err := b.Start(b.ctx, "viablk", "target", "--admin", "none", "--listen", "nbd+unix:///?socket="+socket, "--export", "plain=file:/tmp/plain")
		must(t, err)
		b.awaitOutput(t, server, socket)
		return server
	}
	server := start()
	client, err := b.Start(b.ctx, "worker", "client", "-socket", socket, "-export", "plain")
	must(t, err)
	b.awaitOutput(t, client, "/dev/nbd0")
	b.restartUnderLoad(t, func() {
		b.end(t, server)
		server = start()
	})
	b.end(t, client)
	b.end(t, server)
}

// restartUnderLoad calls restart again and again while fio writes and reads a
// file of the device's file system.
func (b *deviceBed) restartUnderLoad(t *testing.T, restart func()) {
	t.Helper()
	b.script(t, "mkfs.ext4 -q -F /dev/nbd0 && mount /dev/nbd0 /mnt && rm -f /run/enough && dmesg -c > /dev/null")
	load, err := b.Start(b.ctx, "sh", "-c", `
		while [ ! -e /run/enough ]; do
			fio --minimal --name=v --filename=/mnt/file --size=4m --bsrange=4k-64k --rw=randrw --ioengine=libaio --direct=1 --iodepth=8 \
				--verify=crc32c --do_verify=1 --verify_fatal=1 > /run/fio 2>&1 || { cat /run/fio; exit 1; }
			echo verified
		done`)
	must(t, err)
	for cycle := range *restartCycles {
		b.awaitRequests(t, 20)
		restart()
		select {
		case <-load.ended:
			t.Fatalf("cycle %d: %v", cycle, load.Wait())
		default:
		}
		if said := b.script(t, "dmesg -c"); strings.Contains(said, "I/O error") {
			t.Fatalf("cycle %d: the kernel reports errors: %s", cycle, said)
		}
	}
	b.awaitRequests(t, 20)
	b.script(t, "touch /run/enough")
	r := load.Wait()
	if verified := strings.Count(r.Stdout, "verified\n"); !r.OK() || verified == 0 {
		t.Fatalf("%d rounds of fio: %v", verified, r)
	}
	t.Logf("%d restarts, %d rounds of fio", *restartCycles, strings.Count(r.Stdout, "verified\n"))
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && [ -z \"$(dmesg -c | grep 'I/O error')\" ]")
}
