package initiator_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// blockingGate is a gate whose writes block the target's worker.
type blockingGate struct{ *gate }

func (g *blockingGate) Attempt(r *block.Request) bool {
	r.Err = g.Execute(r)
	return true
}

// TestSlowDiskIsNoDeadTarget: a disk that answers nothing for longer than a
// dead target is silent costs no session, also if it blocks the worker of the
// connection.
func TestSlowDiskIsNoDeadTarget(t *testing.T) {
	for name, blocks := range map[string]bool{"the disk has workers": false, "the disk blocks": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			if blocks {
				g.Executor.Close()
				g.Executor = block.NewExecutor(&blockingGate{g}, 0)
			}
			r := newRemote(t, target.Config{Exports: []target.Export{{Name: "a", Device: g}}})
			d := r.dial(t, "a", lasting(initiator.Forever))
			q := open(t, d, 4)
			submit(t, q, request(block.Write, 0, 4096))
			for len(g.began) == 0 {
				must(t, drive(q))
			}
			for began := time.Now(); time.Since(began) < 5*time.Second; { // a dead target is silent for less than 4
				must(t, drive(q))
			}
			close(g.pass)
			wantAll(t, q, 1, 0)
			if st := d.Status(); st.SessionLosses != 0 || g.writes.Load() != 1 {
				t.Errorf("%d sessions were lost, the disk executed %d writes", st.SessionLosses, g.writes.Load())
			}
		})
	}
}
