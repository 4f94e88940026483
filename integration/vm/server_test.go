//go:build vm

package vm

import (
	"strings"
	"syscall"
	"testing"
)

// foreignURI is the disk of a server of another project.
const foreignURI = "nbd://127.0.0.1:10811/"

// serveForeign starts a server of another project. With several threads for a
// connection, Debian's nbdkit 1.32 aborts if the client leaves while they
// answer it (raw_send_socket: Assertion "sock >= 0" failed).
func (b *deviceBed) serveForeign(t *testing.T) *Command {
	t.Helper()
	c, err := b.Start(b.ctx, "nbdkit", "--foreground", "--threads", "1", "--ipaddr", "127.0.0.1", "--port", "10811", "file", "/tmp/foreign")
	must(t, err)
	b.await(t, "64MiB", "viablk", "list", foreignURI)
	return c
}

// testForeignServer has a device of a disk of another project's server, with
// the process of the device and the server killed. The device fails if the
// server was lost with writes that were not flushed, and not before.
func (b *deviceBed) testForeignServer(t *testing.T) {
	b.script(t, "truncate -s 64M /tmp/foreign")
	server := b.serveForeign(t)
	lose := func() {
		t.Helper()
		must(t, server.Signal(syscall.SIGKILL))
		server.Wait()
		server = b.serveForeign(t)
	}
	first := b.attachAs(t, "/dev/nbd0", foreignURI, "--connections", "2", "--io-timeout", "5s")
	if out := b.script(t, "cat /sys/block/nbd0/backend"); out != foreignURI+"\n" {
		t.Errorf("the backend of the device is %s", out)
	}
	// ext4 does not flush the superblock that it writes at the end.
	b.script(t, "mkfs.ext4 -q -b 4096 /dev/nbd0 && mount /dev/nbd0 /mnt;"+fill+"umount /mnt && dd if=/dev/null of=/dev/nbd0 conv=fsync,notrunc 2>/dev/null")
	lose()
	b.script(t, "e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum")

	must(t, server.Signal(syscall.SIGSTOP))
	writer, err := b.Start(b.ctx, "sh", "-ec", fill)
	must(t, err)
	b.awaitBusy(t)
	must(t, first.Signal(syscall.SIGKILL))
	first.Wait()
	must(t, server.Signal(syscall.SIGCONT))
	second := b.attachAs(t, "/dev/nbd0", foreignURI, "--connections", "2", "--io-timeout", "5s", "--reattach", "--durable")
	if r := writer.Wait(); !r.OK() {
		t.Fatal(r)
	}
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt && sha256sum -c /sum && umount /mnt")
	b.detach(t, second)

	// Debian's server keeps what it answered when it is killed, which NBD does
	// not tell: without a promise the disk fails.
	const write = "dd if=/sum of=/dev/nbd0 bs=512 count=1 oflag=direct conv=sync 2>/dev/null"
	for _, durable := range []bool{true, false} {
		args := []string{}
		if durable {
			args = append(args, "--durable")
		}
		c := b.attachAs(t, "/dev/nbd0", foreignURI, args...)
		b.script(t, write)
		lose()
		r := b.Run(b.ctx, "sh", "-c", write)
		if r.Err != nil || r.OK() != durable {
			t.Errorf("durable %v: a write after the server was lost: %v", durable, r)
		}
		if durable {
			b.detach(t, c)
			continue
		}
		if r := b.Run(b.ctx, "viablk", "status", "/dev/nbd0"); r.Code != 2 || !strings.Contains(r.Stdout, "failed") || !strings.Contains(r.Stdout, "not flushed") {
			t.Error(r)
		}
		b.refused(t, 1, "--force gives up what it holds", "viablk", "detach", "/dev/nbd0")
		b.run(t, "viablk", "detach", "--force", "/dev/nbd0")
		if r := c.Wait(); !r.OK() || !strings.Contains(r.Stderr, "not flushed") {
			t.Error(r)
		}
	}
	must(t, server.Signal(syscall.SIGTERM))
	server.Wait()
}
