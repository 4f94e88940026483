package session

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// TestTargetReturnsWithoutTheExport: a target that is back and refuses is named
// once, with its reason, and requests wait until it has the export again.
func TestTargetReturnsWithoutTheExport(t *testing.T) {
	t.Parallel()
	listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
	d := testbed.FileDisk(diskSize)(t)
	p := testbed.StartTarget(t, testbed.Program(t), listen, d)
	a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--reconnect-delay", "50ms")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 65536 1", "ok")
	p.Crash()
	k.Send("check 0 65536 1")
	p = testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: "other", Spec: "memory:1MiB"})
	const reason = `no export is named \"disk\"`
	testbed.Eventually(t, "several refusals", func() (any, bool) {
		n := strings.Count(p.Stderr.String(), "export not opened")
		return n, n >= 4
	})
	if got := inState(t, a, initiator.StateWaiting); !strings.Contains(got, `no export is named "disk"`) {
		t.Errorf("status gives the reason %q", got)
	}
	if st := a.Status().Initiators[0]; st.DisconnectedSeconds == 0 {
		t.Errorf("status does not say for how long the target is gone: %+v", st)
	}
	p.Stop()
	testbed.StartTarget(t, testbed.Program(t), listen, d)
	k.Expect("ok")
	if got := inState(t, a, initiator.StateConnected); got != "" {
		t.Errorf("status keeps the reason %q", got)
	}
	logsOnce(t, a, "level=WARN", "the target is there and refuses", reason)
}

// TestLossTimeoutIsLoggedOnce: requests fail when a target was gone for too
// long, which the log says once, and succeed when it is back.
func TestLossTimeoutIsLoggedOnce(t *testing.T) {
	t.Parallel()
	listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
	d := testbed.FileDisk(diskSize)(t)
	p := testbed.StartTarget(t, testbed.Program(t), listen, d)
	a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--reconnect-delay", "50ms", "--ctrl-loss-tmo", "500ms")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 65536 1", "ok")
	p.Crash()
	for range 3 {
		k.Ask("check 0 65536 1", "EIO")
	}
	const late = "the target did not return in time"
	logged(t, a, late)
	inState(t, a, initiator.StateFailed)
	testbed.StartTarget(t, testbed.Program(t), listen, d)
	inState(t, a, initiator.StateConnected)
	testbed.Eventually(t, "the disk", func() (any, bool) {
		k.Send("check 0 65536 1")
		got := k.Answer()
		return got, got == "ok"
	})
	logsOnce(t, a, "level=ERROR", late)
}

// logsOnce checks that exactly one line of a log has all of the texts.
func logsOnce(t *testing.T, p *testbed.Process, texts ...string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(p.Stderr.String()) {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d lines of the log have %q, not one:\n%s", n, texts, p.Stderr.String())
	}
}
