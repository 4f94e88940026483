package target_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestDrain: commands in flight finish and are answered, new ones are refused,
// and then the connections end.
func TestDrain(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g})
	s := r.attach(t, "slow")
	s.write(t, g, 0)
	drained := make(chan error, 2)
	for range 2 {
		go func() { drained <- r.server.Drain(context.Background()) }()
	}
	waitFor(t, "the drain", func() bool { return r.server.Status().Draining })
	if _, err := connect(r.nic, r.host, nil); rejection(err) != wire.RejectLeaving {
		t.Errorf("connection to a target that drains: %v", err)
	}
	// Until the worker sees the drain, it still takes commands.
	taken := 1
	for slot := uint16(1); ; slot++ {
		cmd := inlineWrite(0, make([]byte, 512))
		cmd.Slot, cmd.Export = slot, s.export.Export
		must(t, s.io.command(cmd, make([]byte, 512)))
		var refused bool
		waitFor(t, "the command to be taken or refused", func() bool {
			s.io.poll()
			refused = len(s.io.queue) > 0
			return refused || len(g.started) > 0
		})
		if refused {
			break
		}
		<-g.started
		taken++
	}
	if status, _, err := s.io.status(); err != nil || status != wire.StatusShutdown {
		t.Errorf("a command that came during the drain: %v, %v", status, err)
	}
	close(g.pass)
	for range 2 {
		must(t, <-drained)
	}
	ok := 0
	for {
		status, _, err := s.io.status()
		if errors.Is(err, errLost) {
			break
		}
		must(t, err)
		if status != wire.StatusOK {
			t.Errorf("a write in flight was answered %v", status)
		}
		ok++
	}
	if ok != taken {
		t.Errorf("%d of %d writes in flight were answered", ok, taken)
	}
	if _, err := s.control.ends(); err != nil {
		t.Error(err)
	}
	if got := r.state(); got.connections != 0 || got.sessions != 0 {
		t.Errorf("left over: %+v", got)
	}
	if text := r.log.String(); strings.Contains(text, "connection ended") {
		t.Errorf("a drain is in the log:\n%s", text)
	}
}

// TestDrainGivesUp: a disk that does not answer keeps the target from draining,
// and it says so in time.
func TestDrainGivesUp(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g})
	s := r.attach(t, "slow")
	s.write(t, g, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("drain of a stuck disk: %v", err)
	}
	close(g.pass)
	must(t, r.server.Drain(context.Background()))
	if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
		t.Errorf("the write in flight was answered %v, %v", status, err)
	}
}

// TestDrainOfNothing returns at once.
func TestDrainOfNothing(t *testing.T) {
	r := newRig(t, target.Config{}, disk(t, "disk"))
	must(t, r.server.Drain(context.Background()))
	must(t, r.server.Drain(context.Background()))
}

// TestDrainEndsASessionAsAWhole: an I/O connection without commands stays while
// another one has some, and refuses commands. The event go away comes when the
// last one is answered, and then the connections end.
func TestDrainEndsASessionAsAWhole(t *testing.T) {
	g := newGate(1, 1<<20)
	r := newRig(t, target.Config{}, target.Export{Name: "slow", Device: g})
	s := &session{id: newID(), control: r.peer(t)}
	login := s.control.loginRequest(wire.RoleControl, s.id, 0)
	login.Features |= wire.FeatureEvents
	must(t, s.control.login(login))
	must(t, s.open(1, "slow", wire.OpenReadWrite, &s.export))
	s.io = r.join(t, s, 1)
	idle := r.join(t, s, 2)
	s.write(t, g, 0)
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(context.Background()) }()
	waitFor(t, "the drain", func() bool { return r.server.Status().Draining })
	unknown := wire.Command{Opcode: wire.OpBlockStatus, Mode: wire.ModeInline, Length: 512, Export: 99}
	for refused := 0; refused < 50; {
		must(t, idle.command(unknown, nil))
		status, _, err := idle.status()
		must(t, err)
		switch status {
		case wire.StatusNotFound: // it has not seen the drain yet
		case wire.StatusShutdown:
			refused++
		default:
			t.Fatalf("a command during a drain: %v", status)
		}
	}
	if v, err := s.control.listen(1); err != nil || v != nil {
		t.Errorf("an event while a write is in flight: %+v, %v", v, err)
	}
	close(g.pass)
	if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
		t.Errorf("the write in flight was answered %v, %v", status, err)
	}
	if v, err := s.control.listen(forever); err != nil || v == nil || v.Kind != wire.EventGoAway {
		t.Errorf("the event of a drain: %+v, %v", v, err)
	}
	must(t, <-drained)
	for _, p := range []*peer{s.io, idle, s.control} {
		if n, err := p.ends(); err != nil || n != 0 {
			t.Errorf("%d messages at the end of a connection, %v", n, err)
		}
	}
}
