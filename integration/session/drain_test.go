package session

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestDrainAnswersRequestsInFlight: SIGTERM comes while one NBD client waits
// for a write and another one is idle. The target answers the write before it
// ends, and the next one does not execute it again.
func TestDrainAnswersRequestsInFlight(t *testing.T) {
	for provider, listen := range map[string]string{
		"shm":  "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"),
		"roce": "via+roce://127.77.60.1/",
	} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			d := testbed.FileDisk(16 << 20)(t)
			slow := testbed.Disk{Name: d.Name, Spec: "delay:write=2s:" + d.Spec}
			p := testbed.StartTarget(t, testbed.Program(t), listen, slow)
			a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI(d.Name, "via+"+provider), d.Name)
			idle, writer := testbed.Connect(t, a.URI(d.Name, "nbd+unix")), testbed.Connect(t, a.URI(d.Name, "nbd+unix"))
			idle.Ask("read 0 4096", "ok")
			writer.Send("fill 0 4096 7")
			testbed.Eventually(t, "the write", func() (any, bool) {
				st := p.Status()
				return st, st.Targets[0].Exports[0].Stats.Writes == 1
			})
			p.Signal(syscall.SIGTERM)
			writer.Expect("ok") // of this target: there is no other yet
			if code := p.ExitCode(); code != 0 {
				t.Fatalf("exit code %d\n%s", code, p.Output())
			}
			next := testbed.StartTarget(t, testbed.Program(t), listen, d)
			idle.Ask("check 0 4096 7", "ok")
			if n := next.Status().Targets[0].Exports[0].Stats.Writes; n != 0 {
				t.Errorf("the next target executed %d writes", n)
			}
			writer.Ask("fill 4096 4096 8", "ok")
			if st := a.Status().Initiators[0]; st.SessionLosses != 1 || st.Stats.Errors != 0 {
				t.Errorf("initiator: %+v", st)
			}
		})
	}
}
