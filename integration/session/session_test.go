package session

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// twoDisks starts a target with two disks and attaches both.
func twoDisks(t *testing.T, size string) (p *testbed.Process, uris [2]string) {
	t.Helper()
	names := [2]string{"one", "two"}
	p = testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"),
		testbed.Disk{Name: names[0], Spec: "memory:" + size}, testbed.Disk{Name: names[1], Spec: "memory:" + size})
	for i, name := range names {
		uris[i] = testbed.AttachDisk(t, testbed.Program(t), p, name).URI(name, "nbd+unix")
	}
	return p, uris
}

func TestTwoInitiatorsVerifyAtOnce(t *testing.T) {
	t.Parallel()
	_, uris := twoDisks(t, "32MiB")
	var jobs [2]*testbed.Tool
	for i, uri := range uris {
		jobs[i] = testbed.StartFio(t, uri, testbed.WithVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=32", "--size=32m")...)
	}
	for _, j := range jobs {
		testbed.Succeed(t, j)
	}
}

// TestTwoInitiatorsOnSeparateRanges writes different data to two disks at once.
func TestTwoInitiatorsOnSeparateRanges(t *testing.T) {
	t.Parallel()
	_, uris := twoDisks(t, "24MiB")
	both := testbed.RandomBytes(48 << 20)
	data := [2][]byte{both[:24<<20], both[24<<20:]}
	var copies [2]*testbed.Tool
	for i, uri := range uris {
		copies[i] = testbed.StartTool(t, "nbdcopy", "--flush", testbed.WriteFile(t, "source", data[i]), uri)
	}
	for i, c := range copies {
		testbed.Succeed(t, c)
		back := testbed.WriteFile(t, "back", nil)
		testbed.Run(t, "nbdcopy", uris[i], back)
		testbed.CheckFile(t, back, data[i])
	}
}

func TestOneWriterPerExport(t *testing.T) {
	t.Parallel()
	p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: "memory:1MiB"})
	first := testbed.AttachDisk(t, testbed.Program(t), p, "disk")
	writer := testbed.Connect(t, first.URI("disk", "nbd+unix"))
	writer.Ask("write 0 4096", "ok")

	second := []string{"attach", p.URI("disk", "via+shm"), "--admin", "none", "--nbd", "nbd+unix:///x?socket=" + filepath.Join(testbed.Folder(t), "n")}
	testbed.Refused(t, 75, "has it open read-write: attach it read-only, or preempt that client", second...)

	// A reader may look on.
	reader := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--read-only")
	testbed.Connect(t, reader.URI("disk", "nbd+unix")).Ask("read 0 4096", "ok")
	writer.Ask("write 4096 4096", "ok")

	// The export is free when its writer is gone.
	writer.Disconnect()
	first.Stop()
	next := testbed.AttachDisk(t, testbed.Program(t), p, "disk")
	testbed.Connect(t, next.URI("disk", "nbd+unix")).Ask("write 0 4096", "ok")
}

// TestAttachServesTCP has the system choose a port, which the ready line tells.
func TestAttachServesTCP(t *testing.T) {
	t.Parallel()
	p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: "memory:8MiB"})
	a := testbed.Start(t, "attach", p.URI("disk", "via+shm"), "--nbd", "nbd://127.0.0.1:0/mine", "--admin", filepath.Join(testbed.Folder(t), "a"))
	testbed.Fio(t, a.URI("mine", "nbd"), testbed.WithVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=16", "--size=8m")...)
}

// TestInitiatorsComeAndGo attaches again and again.
func TestInitiatorsComeAndGo(t *testing.T) {
	t.Parallel()
	p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: "memory:1MiB"})
	for range 10 {
		a := testbed.AttachDisk(t, testbed.Program(t), p, "disk")
		k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
		k.Ask("write 0 65536", "ok")
		k.Disconnect()
		a.Stop()
	}
	testbed.TargetIdle(t, p)
}

// TestDisconnectIsNotLogged checks the logs of processes that a signal ended
// for errors.
func TestDisconnectIsNotLogged(t *testing.T) {
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:1MiB"})
			k := testbed.Connect(t, s.URI)
			k.Ask("write 0 4096", "ok")
			k.Disconnect()
			for _, p := range []*testbed.Process{s.Attach, s.Target} {
				if p.Waited {
					continue
				}
				p.Signal(syscall.SIGTERM)
				if code := p.ExitCode(); code != 0 {
					t.Errorf("%s: exit code %d", p, code)
				}
				if alarm.MatchString(p.Stderr.String()) {
					t.Errorf("%s raises an alarm:\n%s", p, p.Stderr.String())
				}
			}
		})
	}
}
