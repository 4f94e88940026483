package target_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// flushDisk is a disk of zeroes that counts flushes, which may fail.
type flushDisk struct {
	*block.Executor
	flushes atomic.Int32
	broken  atomic.Bool
}

func newFlushDisk() *flushDisk {
	d := &flushDisk{}
	d.Executor = block.NewExecutor(d, 0)
	return d
}

func (d *flushDisk) Info() block.Info {
	return block.Info{
		Size: 1 << 20, MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: block.PayloadLimit,
		Features: block.CanFlush | block.CanFUA | block.CanMultiConn,
	}
}

func (d *flushDisk) NewQueue(depth int) (block.Queue, error) {
	return d.Executor.NewQueue(depth, block.PayloadLimit)
}

func (d *flushDisk) Close() error {
	d.Executor.Close()
	return nil
}

func (d *flushDisk) Attempt(*block.Request) bool { return false }

func (d *flushDisk) Execute(r *block.Request) error {
	if r.Op == block.Flush {
		d.flushes.Add(1)
		if d.broken.Load() {
			return syscall.EIO
		}
	}
	return nil
}

// TestDrainTellsWhatIsDurable: a target that drains asks for the logout, and
// its answer says durable only if a flush succeeded after the last write. A
// logout without a drain flushes nothing.
func TestDrainTellsWhatIsDurable(t *testing.T) {
	for name, c := range map[string]struct{ drains, broken, durable bool }{
		"drain":                 {true, false, true},
		"drain of a dying disk": {true, true, false},
		"logout alone":          {false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFlushDisk()
			d.broken.Store(c.broken)
			r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: d})
			s := &session{id: newID(), control: r.peer(t)}
			login := s.control.loginRequest(wire.RoleControl, s.id, 0)
			login.Features |= wire.FeatureEvents
			must(t, s.control.login(login))
			must(t, s.open(1, "disk", wire.OpenReadWrite, &s.export))
			drained := make(chan error, 1)
			if c.drains {
				go func() { drained <- r.server.Drain(context.Background()) }()
				v, err := s.control.listen(forever)
				if err != nil || v == nil || v.Kind != wire.EventGoAway {
					t.Fatalf("the event of a drain: %+v, %v", v, err)
				}
			} else {
				drained <- nil
			}
			var a wire.LogoutResponse
			must(t, s.control.ask(&wire.Logout{ID: 9, PathEpoch: s.control.epoch}, &a))
			if a.Durable != c.durable {
				t.Errorf("durable is %v", a.Durable)
			}
			if got := d.flushes.Load() > 0; got != c.drains {
				t.Errorf("flushed: %v", got)
			}
			must(t, <-drained)
		})
	}
}
