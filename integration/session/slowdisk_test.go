package session

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestSlowDiskIsNoDeadTarget: a read that the disk holds for longer than every
// timeout of the two processes is answered by the disk. The target shows its
// age, logs it, and refuses other initiators meanwhile.
func TestSlowDiskIsNoDeadTarget(t *testing.T) {
	for provider, listen := range map[string]string{
		"shm":  "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"),
		"roce": "via+roce://127.77.62.1/",
	} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			d := testbed.Disk{Name: "disk", Spec: "delay:read=7s:memory:16MiB"}
			p := testbed.StartBinary(t, testbed.Program(t), "target", "--admin", filepath.Join(testbed.Folder(t), "target"),
				"--listen", listen, "--export", d.Name+"="+d.Spec, "--io-timeout", "1s")
			uri := p.URI(d.Name, "via+"+provider)
			a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), uri, d.Name, "--ctrl-loss-tmo", "1s")
			k := testbed.Connect(t, a.URI(d.Name, "nbd+unix"))
			k.Send("read 0 4096")
			testbed.Eventually(t, "the age of the read", func() (any, bool) {
				st := p.Status()
				return st, st.Targets[0].Exports[0].OldestRequest > 1
			})
			c := testbed.StartPath(t, testbed.Environment(t), testbed.Program(t), "attach", uri, "--read-only", "--admin", "none",
				"--nbd", "nbd+unix:///disk?socket="+filepath.Join(testbed.Folder(t), "n"))
			if code := c.Wait(t, testbed.ToolLimit); code == 0 || !regexp.MustCompile(`the disk has not answered a request for \ds: try again`).MatchString(c.Output()) {
				t.Errorf("%s: exit code %d\n%s", c, code, c.Output())
			}
			k.Expect("ok")
			testbed.Eventually(t, "the log", func() (any, bool) {
				return p.Output(), strings.Contains(p.Output(), "the disk has answered: clients are admitted")
			})
			if st := p.Status(); st.Targets[0].Exports[0].OldestRequest != 0 {
				t.Errorf("target: %+v", st.Targets[0].Exports[0])
			}
			if n := strings.Count(p.Output(), "a request is in the disk for longer than io_timeout"); n != 1 {
				t.Errorf("logged %d times", n)
			}
			if st := a.Status().Initiators[0]; st.SessionLosses != 0 || st.Stats.Errors != 0 {
				t.Errorf("initiator: %+v", st)
			}
		})
	}
}

// TestSlowDiskOfNBDClients: of a disk that NBD clients alone use, the target
// shows the age of a read that the disk holds, logs it, and tells new clients
// why they do not get the disk. The read is answered by the disk.
func TestSlowDiskOfNBDClients(t *testing.T) {
	t.Parallel()
	p := testbed.StartBinary(t, testbed.Program(t), "target", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "n"), "--export", "disk=delay:read=6s:memory:16MiB", "--io-timeout", "1s")
	uri := p.URI("disk", "nbd+unix")
	k := testbed.Connect(t, uri)
	k.Send("read 0 4096")
	testbed.Eventually(t, "the log", func() (any, bool) {
		return p.Output(), strings.Contains(p.Output(), "event=disk_overdue export=disk")
	})
	if st := p.Status(); st.Disks[0].OldestRequest <= 1 {
		t.Errorf("the disk: %+v", st.Disks)
	}
	testbed.Requires(t, "qemu-io")
	c := testbed.StartPath(t, testbed.Environment(t), testbed.Locate("qemu-io"), "-f", "raw", "-c", "length", uri)
	if code := c.Wait(t, testbed.ToolLimit); code == 0 || !regexp.MustCompile(`the disk has not answered a request for \ds: try again`).MatchString(c.Output()) {
		t.Errorf("a new client: exit code %d\n%s", code, c.Output())
	}
	k.Expect("ok")
	testbed.Eventually(t, "the log", func() (any, bool) {
		return p.Output(), strings.Contains(p.Output(), "event=disk_answered export=disk")
	})
	if st := p.Status(); st.Disks[0].OldestRequest != 0 {
		t.Errorf("the disk: %+v", st.Disks)
	}
	testbed.Connect(t, uri).Disconnect()
	k.Disconnect()
}
