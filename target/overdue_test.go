package target_test

import (
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// inlineGate is a gate whose requests block the worker itself.
type inlineGate struct{ *gate }

func newInlineGate() *inlineGate {
	g := &inlineGate{newGate(1, 1<<20)}
	g.Executor.Close()
	g.Executor = block.NewExecutor(g, 0)
	return g
}

func (g *inlineGate) Attempt(r *block.Request) bool {
	r.Err = g.Execute(r)
	return true
}

// TestOverdueDisk: a request that is in the disk for longer than the timeout is
// logged once, and new clients are refused until it is answered. Nothing
// answers it but the disk, whether the disk blocks the worker or not.
func TestOverdueDisk(t *testing.T) {
	gates := map[string]func() (block.Device, *gate){
		"the disk has workers": func() (block.Device, *gate) { g := newGate(1, 1<<20); return g, g },
		"the disk blocks":      func() (block.Device, *gate) { g := newInlineGate(); return g, g.gate },
	}
	for name, open := range gates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, g := open()
			r := newRig(t, target.Config{KeepAlive: 2 * time.Second, IOTimeout: 50 * time.Millisecond}, target.Export{Name: "slow", Device: d})
			s := r.attach(t, "slow")
			age := func() float64 { return r.server.Status().Exports[0].OldestRequest }
			if age() != 0 {
				t.Errorf("the oldest request of an idle disk has %v s", age())
			}
			s.write(t, g, 0)
			logged := "a request is in the disk for longer than io_timeout"
			waitFor(t, "the log", func() bool {
				_, err := s.control.listen(1) // keeps the session alive
				must(t, err)
				return strings.Contains(r.log.String(), logged)
			})
			if age() < 0.05 {
				t.Errorf("the oldest request has %v s", age())
			}
			other := r.peer(t)
			id := newID()
			must(t, other.login(other.loginRequest(wire.RoleControl, id, 0)))
			ask := &wire.OpenRequest{ID: 2, PathEpoch: other.epoch, OpenID: 1, Mode: wire.OpenReadOnly, Name: "slow"}
			var a wire.OpenResponse
			must(t, other.ask(ask, &a))
			if a.Status != wire.StatusBusy || !strings.Contains(a.Reason, "the disk has not answered a request for ") {
				t.Errorf("an open of an overdue disk: %v, %q", a.Status, a.Reason)
			}
			returns := *ask
			returns.Return = true
			must(t, other.ask(&returns, &a))
			if a.Status != wire.StatusOK {
				t.Errorf("a session that returns: %v, %q", a.Status, a.Reason)
			}
			close(g.pass)
			if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
				t.Errorf("the write was answered %v, %v", status, err)
			}
			waitFor(t, "the disk being idle", func() bool { return age() == 0 })
			ask.OpenID = 2
			must(t, other.ask(ask, &a))
			if a.Status != wire.StatusOK {
				t.Errorf("an open of a disk that has answered: %v, %q", a.Status, a.Reason)
			}
			if n := strings.Count(r.log.String(), logged); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

// TestOldestRequest: the age is that of the oldest request that is still in the
// disk, in a queue that is never idle.
func TestOldestRequest(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{KeepAlive: 2 * time.Second}, target.Export{Name: "slow", Device: g})
	s := r.attach(t, "slow")
	age := func() float64 { return r.server.Status().Exports[0].OldestRequest }
	read := func(slot uint16) {
		cmd := inlineRead(0, 512)
		cmd.Slot, cmd.Export = slot, s.export.Export
		must(t, s.io.command(cmd, nil))
		<-g.started
	}
	read(0)
	waitFor(t, "the age", func() bool { return age() > 0.3 })
	second := time.Now()
	read(1)
	g.pass <- struct{}{} // to the first
	if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
		t.Errorf("the first read was answered %v, %v", status, err)
	}
	waitFor(t, "the age of the second read", func() bool {
		_, err := s.control.listen(1) // keeps the session alive
		must(t, err)
		got := age()
		return got > 0 && got <= time.Since(second).Seconds()
	})
	close(g.pass)
	if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
		t.Errorf("the second read was answered %v, %v", status, err)
	}
}
