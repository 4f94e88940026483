//go:build vm

package vm

import (
	"context"
	"strings"
	"syscall"
	"testing"
)

// TestVsock serves disks over AF_VSOCK to libnbd and to ourselves. The machine
// talks to itself, by the CID that every machine has for that: the kernel under
// the test need not have vsock.
func TestVsock(t *testing.T) {
	t.Parallel()
	v := Boot(t, Config{
		Modules: []string{"vsock", "vsock_loopback"},
		Tools:   []string{"libnbd-bin/nbdinfo", "libnbd-bin/nbdcopy"},
		Files: map[string]string{
			"/usr/bin/viablk": Program(t, modulePath+"/cmd/viablk"),
			"/usr/bin/worker": Program(t, modulePath+"/integration/vm/worker"),
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*waitLimit)
	defer cancel()
	v.Must("viablk", "pki", "init", "/ca")
	v.Must("viablk", "pki", "issue", "/ca", "server", "localhost", "--out", "/server")
	v.Must("viablk", "pki", "issue", "/ca", "client", "alice", "--out", "/alice")
	server, err := v.Start(ctx, "viablk", "target", "--insecure", "--admin", "/admin", "--drain-timeout", "5s",
		"--tls", "on", "--tls-certificates", "/server",
		"--listen", "nbd+vsock:///", "--listen", "nbd+vsock://1:99/", "--export", "disk=limit:session-iops=1000000:memory:8MiB")
	must(t, err)
	must(t, v.Await(ctx, "disk", "viablk", "list", "nbd+vsock://1/"))

	for uri, client := range map[string]string{
		"nbd+vsock://1/disk": "machine 1", "nbd+vsock://1:99/disk": "machine 1",
		"nbds+vsock://1/disk?tls-certificates=/alice&tls-hostname=localhost": "certificate alice",
	} {
		if got := v.Must("nbdinfo", "--size", uri); got != "8388608\n" {
			t.Errorf("%s: nbdinfo sees %q bytes", uri, got)
		}
		if got := v.Must("viablk", "info", "--size", uri); got != "8388608\n" {
			t.Errorf("%s: viablk sees %q bytes", uri, got)
		}
		v.Must("sh", "-c", "dd if=/dev/urandom of=/tmp/from bs=1M count=8 2>/dev/null")
		v.Must("nbdcopy", "/tmp/from", uri)
		v.Must("nbdcopy", uri, "/tmp/to")
		v.Must("cmp", "/tmp/from", "/tmp/to")
		status := v.Must("viablk", "status", "--admin", "/admin", "-o", "json")
		for _, want := range []string{`"client": "` + client + `"`, `"nbd+vsock://2/disk"`, `"nbd+vsock://1:99/disk"`} {
			if !strings.Contains(status, want) {
				t.Errorf("%s: no %s in the status: %s", uri, want, status)
			}
		}
	}
	v.Must("worker", "disconnect", "-export", "disk", "-rounds", "50")
	// No process listens there: the answer comes at once.
	if r := v.Run(ctx, "viablk", "list", "nbd+vsock://1:98/"); r.Code != 75 || !strings.Contains(r.Stderr, "nbd+vsock://1:98/: ") {
		t.Errorf("got %v", r)
	}
	if r := v.Run(ctx, "viablk", "target", "--listen", "nbd+vsock://1:99/", "--export", "a=memory:1M", "--admin", "none"); r.Code != 75 ||
		!strings.Contains(r.Stderr, "address already in use") {
		t.Errorf("a second server: got %v", r)
	}
	must(t, server.Signal(syscall.SIGTERM))
	if r := server.Wait(); !r.OK() {
		t.Error(r)
	}
}
