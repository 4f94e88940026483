package cm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// watch advances the time by d, from deadline to deadline, and returns the
// Manager's effects with their times since the start.
func (s *script) watch(d time.Duration) string {
	s.t.Helper()
	start, last := s.now, s.m.State(s.id)
	var all []string
	for at, ok := s.m.Deadline(); ok && at <= start+d; at, ok = s.m.Deadline() {
		if at < s.now {
			s.t.Fatalf("deadline %v at %v", at, s.now)
		}
		s.now = at
		s.m.Timeout(at - 1)
		s.silent()
		s.m.Timeout(at)
		effects := strings.TrimSuffix(s.effects(), ", "+last)
		all = append(all, fmt.Sprintf("%v %s", (s.now-start).Round(time.Millisecond), effects))
		last = s.m.State(s.id)
	}
	s.now = start + d
	return strings.Join(all, "\n")
}

// repeats returns the times at which the Manager repeats an unanswered message
// within 8 s, whose waits double up to a limit.
func repeats(message string, limit time.Duration) string {
	var all []string
	wait := 50 * time.Millisecond
	for at := wait; at < 8*time.Second; at += wait {
		all = append(all, fmt.Sprint(at, " ", message))
		wait = min(2*wait, limit)
	}
	return strings.Join(all, "\n")
}

func TestSilentPeer(t *testing.T) {
	for _, c := range []struct {
		name, want string
		way        func(*script)
	}{
		{"req-sent", repeats("REQ", 200*time.Millisecond) + "\n8s REJ 4, timed-out, time-wait\n10s released, gone", (*script).asking},
		{"rep-sent", "50ms REP\n150ms rep-sent\n8s timed-out, time-wait\n10s released, gone", (*script).answered},
		{"dreq-sent", repeats("DREQ", time.Second) + "\n8s disconnected, time-wait\n10s released, gone", (*script).disconnecting},
		// Half of the peer's timeout; three times the MRA's service timeout
		// plus the peer's timeout.
		{"req-received", "2.147s MRA\n2m2.407s REJ 4, timed-out, time-wait\n2m4.407s released, gone", (*script).requested},
		{"rep-received", "268ms MRA\n59.808s REJ 4, timed-out, time-wait\n1m1.808s released, gone", (*script).granted},
		{"established", "", (*script).established},
		{"established", "", (*script).establishedPassive},
	} {
		s := newScript(t)
		c.way(s)
		if got := s.watch(10 * time.Minute); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// An MRA extends the timeout and slows the repetitions.
func TestPeerTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		way     func(*script)
		about   wire.Answered
		service wire.Timeout
		last    string
	}{
		"REQ":     {(*script).asking, wire.AnsweredREQ, 20, "12.295s REJ 4, timed-out, time-wait"},
		"REP":     {(*script).answered, wire.AnsweredREP, 20, "12.295s REJ 4, timed-out, time-wait"},
		"forever": {(*script).asking, wire.AnsweredREQ, 31, "2m8s REJ 4, timed-out, time-wait"},
		"at once": {(*script).asking, wire.AnsweredREQ, 0, "8s REJ 4, timed-out, time-wait"},
	} {
		s := newScript(t)
		c.way(s)
		mra := s.mra(c.about)
		mra.ServiceTimeout = c.service
		s.deliver(s.peer, mra)
		lines := strings.Split(s.watch(5*time.Minute), "\n")
		if got := lines[len(lines)-2]; got != c.last || !strings.HasPrefix(lines[0], "1s RE") || !strings.HasPrefix(lines[1], "2s RE") {
			t.Errorf("%s: %s, …, %s", name, lines[0], got)
		}
	}
}

// A consumer may take any time to decide while the peer repeats its request.
func TestSlowConsumer(t *testing.T) {
	a, b := pair(t)
	id, err := a.m.Connect(a.request(b), a.now)
	if err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	e := b.event(cm.Requested)
	pass := func(d time.Duration) {
		for end := a.now + d; a.now < end; {
			a.now += 10 * time.Millisecond
			b.now = a.now
			a.m.Timeout(a.now)
			b.m.Timeout(b.now)
			b.carry(a)
			a.carry(b)
		}
	}
	pass(5 * time.Minute)
	b.quiet()
	if err := b.m.Accept(e.ID, answer, b.now); err != nil {
		t.Fatal(err)
	}
	a.carry(b)
	a.event(cm.Granted)
	pass(5 * time.Minute)
	a.quiet()
	b.quiet()
	if err := a.m.Establish(id, a.now); err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	b.event(cm.Established)
	if c := b.m.Counters(); c.Retransmitted > 400 {
		t.Errorf("%+v", c)
	}
}

// The active end retransmits a lost RTU when the passive end repeats its REP.
func TestLostRTU(t *testing.T) {
	s := newScript(t)
	s.established()
	for range 3 {
		s.deliver(s.peer, s.rep())
		if got := s.effects(); got != "RTU, established" {
			t.Error(got)
		}
	}
}

// An end that gave up repeats its REJ for a peer that missed it.
func TestLostREJ(t *testing.T) {
	s := newScript(t)
	s.granted()
	s.m.Abandon(s.id, s.now)
	if got := s.effects(); got != "REJ 4, time-wait" {
		t.Error(got)
	}
	s.deliver(s.peer, s.rep())
	if got := s.effects(); got != "REJ 4, time-wait" {
		t.Error(got)
	}
	s = newScript(t)
	s.answered()
	s.m.Disconnect(s.id, s.now) // it is not established
	if got := s.effects(); got != "REJ 4, time-wait" {
		t.Error(got)
	}
	s.deliver(s.peer, s.rtu())
	if got := s.effects(); got != "REJ 4, time-wait" {
		t.Error(got)
	}
}

// A peer with a short response time gets an MRA at once; one with the longest
// gets none for a minute.
func TestHurry(t *testing.T) {
	for timeout, first := range map[wire.Timeout]string{0: "0s MRA", 20: "2.147s MRA", 31: "1m0s MRA"} {
		s := newScript(t)
		req := s.req()
		req.RemoteTimeout = timeout
		s.deliver(s.peer, req)
		s.id = s.event(cm.Requested).ID
		if got, _, _ := strings.Cut(s.watch(3*time.Minute), "\n"); got != first {
			t.Errorf("time-out %d: %s, want %s", timeout, got, first)
		}
	}
}

// A consumer that disconnects twice still gets Disconnected.
func TestDisconnectTwice(t *testing.T) {
	s := newScript(t)
	s.disconnecting()
	s.m.Disconnect(s.id, s.now)
	s.silent()
	s.deliver(s.peer, s.drep())
	if got := s.effects(); got != "disconnected, time-wait" {
		t.Error(got)
	}
}

func TestUnreachable(t *testing.T) {
	s := newScript(t)
	s.established()
	s.m.Unreachable(s.foreign(), s.now)
	if got := s.effects(); got != "established" {
		t.Error(got)
	}
	s = newScript(t)
	s.asking()
	s.m.Unreachable(s.peer, s.now) // another port
	s.m.Unreachable(s.addr, s.now)
	if got := s.effects(); got != "req-sent" {
		t.Error(got)
	}
	s.m.Unreachable(s.foreign(), s.now)
	if got := s.effects(); got != "unreachable, time-wait" {
		t.Error(got)
	}
}
