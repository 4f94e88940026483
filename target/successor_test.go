package target_test

import (
	"context"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestDrainAnnouncesSuccessor: every initiator of a target with a successor
// hears when to return before its logout is answered, also one that logs out
// before it is asked to go. Without a successor no event names a time.
func TestDrainAnnouncesSuccessor(t *testing.T) {
	for name, c := range map[string]struct{ announced, early bool }{
		"asked to go":                      {true, false},
		"logs out early":                   {true, true},
		"asked to go, and no successor":    {false, false},
		"logs out early, and no successor": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(1, 1<<20)
			r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: g})
			s := &session{id: newID(), control: r.peer(t)}
			login := s.control.loginRequest(wire.RoleControl, s.id, 0)
			login.Features |= wire.FeatureEvents
			must(t, s.control.login(login))
			must(t, s.open(1, "disk", wire.OpenReadWrite, &s.export))
			s.io = r.join(t, s, 1)
			if c.early {
				s.write(t, g, 0) // in flight: the target is not quiet
			}
			if c.announced {
				r.server.AnnounceSuccessor()
			}
			drained := make(chan error, 1)
			go func() { drained <- r.server.Drain(context.Background()) }()
			waitFor(t, "the drain", func() bool { return r.server.Status().Draining })
			var v *wire.Event
			if !c.early {
				var err error
				v, err = s.control.listen(forever)
				must(t, err)
			}
			b := make([]byte, wire.MaxControlSize)
			n, err := (&wire.Logout{ID: 9, PathEpoch: s.control.epoch}).Encode(b)
			must(t, err)
			must(t, s.control.send(b[:n]))
			// Behind it: the target has the logout when it answers, and the
			// request is in flight until then.
			n, err = (&wire.KeepAlive{ID: 10, PathEpoch: s.control.epoch}).Encode(b)
			must(t, err)
			must(t, s.control.send(b[:n]))
			for {
				e, err := s.control.receive()
				must(t, err)
				if wire.RawOpcode(e.msg) == wire.OpLogoutResponse {
					break
				}
				if wire.RawOpcode(e.msg) == wire.OpKeepAliveAck {
					close(g.pass)
					continue
				}
				if v != nil {
					t.Error("two events")
				}
				v = new(wire.Event)
				must(t, v.Decode(e.msg))
			}
			switch {
			case !c.announced && c.early:
				if v != nil {
					t.Errorf("an event: %+v", v)
				}
			case v == nil || v.Kind != wire.EventGoAway || (v.RetryAfter != 0) != c.announced:
				t.Errorf("the event of a drain: %+v", v)
			}
			must(t, <-drained)
		})
	}
}
