package session

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// TestTargetMachineRestarts: the machine of a target is started again while an
// initiator has writes that were not flushed. A target that ended in order made
// them durable; one that was killed may have lost them.
func TestTargetMachineRestarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(*testbed.Process)
		state initiator.State
	}{
		"planned": {(*testbed.Process).Stop, initiator.StateConnected},
		"power":   {(*testbed.Process).Crash, initiator.StateFailed},
	} {
		for _, provider := range []string{"via+shm", "via+roce"} {
			t.Run(name+" "+provider, func(t *testing.T) {
				d := testbed.FileDisk(diskSize)(t)
				listen := "via+roce://127.78.5.1/"
				if provider == "via+shm" {
					listen = "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
				}
				p := testbed.StartTarget(t, testbed.Program(t), listen, d)
				a := attachOver(t, p, provider)
				k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
				k.Ask("fill 0 65536 1", "ok")
				c.end(p)
				testbed.StartTargetAt(t, testbed.OtherBoot(t), testbed.Program(t), listen, d)
				if c.state == initiator.StateConnected {
					k.Ask("check 0 65536 1", "ok")
					k.Ask("fill 0 65536 2", "ok")
					k.Ask("flush", "ok")
					inState(t, a, initiator.StateConnected)
					return
				}
				k.Ask("flush", "EIO")
				k.Ask("read 0 4096", "EIO")
				const reason = "its machine was started again, and writes that were not flushed may be lost"
				if got := inState(t, a, c.state); !strings.Contains(got, reason) {
					t.Errorf("status gives the reason %q", got)
				}
				logged(t, a, reason)
			})
		}
	}
}
