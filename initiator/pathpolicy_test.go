package initiator

import (
	"crypto/rand"
	"errors"
	"testing"
	"testing/iotest"
	"time"

	"github.com/viablk/viablk/internal/sched"
)

// TestHoldDown: the time for which a lost path is not used doubles with each
// loss up to the longest, begins anew after a path that stood for long, and is
// random between its half and the whole.
func TestHoldDown(t *testing.T) {
	var h holdDown
	want := holdFirst
	for i := range 10 {
		if d := h.next(time.Second, rand.Reader); d < want/2 || d >= want {
			t.Errorf("loss %d: %v of %v", i, d, want)
		}
		want = min(2*want, holdMost)
	}
	if d := h.next(holdReset, iotest.ErrReader(errors.New("none"))); d != holdFirst {
		t.Errorf("after a path that stood: %v", d)
	}
	if d := h.next(0, iotest.ErrReader(errors.New("none"))); d != 2*holdFirst {
		t.Errorf("after the next loss: %v", d)
	}
}

// TestPolicies: a queue without a path gets the one that its policy says, and
// moves from its own if that is worth it.
func TestPolicies(t *testing.T) {
	s := &session{cfg: Config{Scheduler: sched.Real}}
	a, b := s.newPath(0, "a", firstEpoch), s.newPath(2, "b", firstEpoch+1) // a host between them is down
	s.paths[0], s.paths[2] = a, b
	s.keeping.Store(true)
	for _, c := range []struct {
		policy         PathPolicy
		activeA, allA  int64
		activeB, allB  int64
		index          uint16
		want           *path
		leavesA, bIsUp bool
	}{
		{PathFailOver, 9, 9, 0, 0, 1, a, false, true},
		{PathRoundRobin, 0, 1, 9, 9, 1, b, true, true},
		{PathRoundRobin, 9, 9, 0, 0, 2, a, false, true},
		{PathMinInflight, 2, 2, 0, 5, 0, b, true, true},
		{PathMinInflight, 1, 1, 0, 5, 0, b, false, true}, // a move makes them no more equal
		{PathMinInflight, 1, 3, 1, 2, 0, b, false, true},
		{PathMinInflight, 1, 2, 1, 3, 0, a, false, true},
		{PathMinInflight, 9, 9, 0, 0, 0, a, false, false},
		{PathRoundRobin, 9, 9, 0, 0, 1, a, false, false},
	} {
		s.cfg.PathPolicy = c.policy
		a.active.Store(c.activeA)
		a.queues.Store(c.allA)
		b.active.Store(c.activeB)
		b.queues.Store(c.allB)
		if b.lost = sched.Real.NewEvent(); !c.bIsUp {
			b.lost.Set()
		}
		if got := s.pathFor(c.index); got != c.want {
			t.Errorf("%+v: path %s", c, got.host)
		}
		q := &Queue{session: s, path: a, index: c.index, device: &Device{cfg: s.cfg}}
		if b.since = sched.Real.Now().Add(-steadyTime); q.prefers() != c.leavesA {
			t.Errorf("%+v: the queue leaves its path: %v", c, !c.leavesA)
		}
		if b.since = sched.Real.Now(); q.prefers() {
			t.Errorf("%+v: the queue leaves for a path that is new", c)
		}
	}
}
