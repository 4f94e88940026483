package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

func TestRefusalsNameTheirCause(t *testing.T) {
	place := testbed.Folder(t)
	live := "nbd+unix:///?socket=" + filepath.Join(place, "live")
	p := testbed.Start(t, "target", "--admin", filepath.Join(place, "a"), "--export", "disk=memory:1MiB",
		"--listen", live, "--listen", "nbd://127.0.0.1:0", "--listen", "via+shm:///?socket="+filepath.Join(place, "via"))
	tcp := p.URI("disk", "nbd")
	free := "nbd+unix:///?socket=" + filepath.Join(place, "free")
	noSocket := testbed.WriteFile(t, "plain", nil)
	short := testbed.WriteFile(t, "short", make([]byte, 1000))
	empty := testbed.WriteFile(t, "empty", nil)
	target := func(more ...string) []string { return append([]string{"target", "--admin", "none"}, more...) }
	attach := func(uri, nbd string) []string { return []string{"attach", uri, "--nbd", nbd, "--admin", "none"} }
	for _, c := range []struct {
		name string
		code int
		line string
		args []string
	}{
		{"scheme", 64, `unknown scheme "http"`, target("--listen", "http://h/", "--export", "a=memory:1M")},
		{"no URI", 64, `"disk0"`, attach("disk0", free)},
		{"URI without socket", 64, `append \?socket=PATH`, attach("via+shm:///disk", free)},
		{"reservation of an NBD server", 64, `an NBD server reserves no disk`, append(attach(tcp, free), "--preempt")},
		{"VIA URI for NBD", 64, `is not an NBD scheme`, attach(p.URI("disk", "via+shm"), "via+shm:///x?socket=/y")},
		{"unknown export over VIA", 1, `no export is named "nosuch"`, attach(strings.Replace(p.URI("disk", "via+shm"), "disk", "nosuch", 1), free)},
		{"unknown export over NBD", 1, `nosuch`, []string{"info", strings.Replace(tcp, "/disk", "/nosuch", 1)}},
		{"no process at the VIA socket", 75, `no process listens`, attach("via+shm:///disk?socket="+filepath.Join(place, "absent"), free)},
		{"no process at the NBD socket", 75, `no such file`, []string{"list", "nbd+unix:///?socket=" + filepath.Join(place, "absent")}},
		{"port in use", 75, `address already in use`, target("--listen", strings.TrimSuffix(tcp, "disk"), "--export", "a=memory:1M")},
		{"NBD socket in use", 75, `in use`, target("--listen", live, "--export", "a=memory:1M")},
		{"VIA socket in use", 75, `in use`, target("--listen", "via+shm:///?socket="+filepath.Join(place, "via"), "--export", "a=memory:1M")},
		{"socket in use by attach", 75, `in use`, attach(p.URI("disk", "via+shm"), live)},
		{"a file in the place of a socket", 1, `not a socket`, target("--listen", "nbd+unix:///?socket="+noSocket, "--export", "a=memory:1M")},
		{"parents of the socket missing", 1, `no such file`, target("--listen", "nbd+unix:///?socket="+filepath.Join(place, "no/where/n"), "--export", "a=memory:1M")},
		{"file missing", 1, `does not exist.*create`, target("--listen", free, "--export", "a=file:"+filepath.Join(place, "missing"))},
		{"file is a folder", 64, `is a directory`, target("--listen", free, "--export", "a=file:"+place)},
		{"file of 1000 bytes", 64, `not a multiple of 512`, target("--listen", free, "--export", "a=file:"+short)},
		{"empty file", 64, `is empty`, target("--listen", free, "--export", "a=file:"+empty)},
		{"memory of 1000 bytes", 64, `not a multiple of 512`, target("--listen", free, "--export", "a=memory:1000")},
		{"name twice", 64, `"a"`, target("--listen", free, "--export", "a=memory:1M", "--export", "a=memory:1M")},
	} {
		t.Run(c.name, func(t *testing.T) { testbed.Refused(t, c.code, c.line, c.args...) })
	}
	// All this has not disturbed who was there first.
	testbed.Connect(t, p.URI("disk", "nbd+unix")).Ask("write 0 4096", "ok")
	if _, err := os.Lstat(noSocket); err != nil {
		t.Errorf("the file in the place of a socket is gone: %v", err)
	}
}

// TestFilesWithoutPermission runs as a user without rights.
func TestFilesWithoutPermission(t *testing.T) {
	testbed.RequiresRoot(t)
	place := testbed.Folder(t)
	testbed.Must(t, os.Chmod(place, 0o755))
	const unprivileged = "65534"
	readable := filepath.Join(place, "readable")
	secret := filepath.Join(place, "secret")
	for path, mode := range map[string]os.FileMode{readable: 0o644, secret: 0o600} {
		testbed.Must(t, os.WriteFile(path, make([]byte, 4096), mode))
	}
	as := []string{"setpriv", "--reuid=" + unprivileged, "--regid=" + unprivileged, "--clear-groups", "--"}
	listen := "nbd://127.0.0.1:0"
	testbed.RefusedAs(t, as, 77, `open backing file .*secret.*permission denied`, "target", "--admin", "none", "--listen", listen, "--export", "a=file:"+secret)
	testbed.RefusedAs(t, as, 77, `permission denied.*readonly=1`, "target", "--admin", "none", "--listen", listen, "--export", "a=file:"+readable)
	testbed.RefusedAs(t, as, 77, `permission denied`, "target", "--admin", "none", "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"), "--export", "a=memory:1M")

	// And a socket of another user's target.
	p := testbed.Start(t, "target", "--admin", filepath.Join(place, "a"), "--listen", "via+shm:///?socket="+filepath.Join(place, "v"), "--export", "disk=memory:1MiB")
	testbed.RefusedAs(t, as, 77, `permission denied`, "attach", p.URI("disk", "via+shm"), "--nbd", listen, "--admin", "none")
}

// TestStaleSocketIsReplaced starts where another process was killed.
func TestStaleSocketIsReplaced(t *testing.T) {
	place := testbed.Folder(t)
	via, local := "via+shm:///?socket="+filepath.Join(place, "v"), "nbd+unix:///disk?socket="+filepath.Join(place, "n")
	targets := []string{"target", "--listen", via, "--export", "disk=memory:1MiB", "--admin", filepath.Join(place, "t")}
	attaches := []string{"attach", "via+shm:///disk?socket=" + filepath.Join(place, "v"), "--nbd", local, "--admin", filepath.Join(place, "a")}
	p := testbed.Start(t, targets...)
	a := testbed.Start(t, attaches...)
	a.Crash()
	p.Crash()
	for _, name := range []string{"v", "n", "t", "a"} {
		if _, err := os.Lstat(filepath.Join(place, name)); err != nil {
			t.Fatalf("a killed process took its socket along: %v", err)
		}
	}
	testbed.Start(t, targets...)
	testbed.Start(t, attaches...)
	testbed.Connect(t, local).Ask("write 0 4096", "ok")
}
