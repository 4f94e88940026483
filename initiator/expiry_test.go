package initiator

import (
	"math"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/sched"
)

// setClock is a scheduler whose clock the test sets.
type setClock struct {
	sched.Scheduler
	now time.Time
}

func (c *setClock) Now() time.Time { return c.now }

// TestLongestPause: an announced successor is asked at the interval that its
// target named, for a bounded time; then the target is any that drained.
func TestLongestPause(t *testing.T) {
	lost := time.Unix(1, 0)
	drained := expiry{soon: lost.Add(successorTime), absent: lost.Add(absentTime)}
	announced := drained
	announced.announced, announced.delay = lost.Add(announcedTime), 4*time.Millisecond
	for _, c := range []struct {
		e       expiry
		after   time.Duration
		refused bool
		want    time.Duration
	}{
		{announced, 0, false, 4 * time.Millisecond},
		{announced, announcedTime - 1, true, 4 * time.Millisecond},
		{announced, announcedTime, false, successorDelay},
		{drained, 0, false, successorDelay},
		{drained, successorTime, false, absentDelay},
		{drained, successorTime, true, math.MaxInt64},
		{drained, absentTime, false, math.MaxInt64},
	} {
		if got := c.e.longestPause(lost.Add(c.after), c.refused); got != c.want {
			t.Errorf("%v after the loss, refused %v: %v, want %v", c.after, c.refused, got, c.want)
		}
	}
}

// TestPollAfter: a poll is late by a sixteenth of what it waited for, by a
// millisecond at least and by longestPoll at most.
func TestPollAfter(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		0:                     time.Millisecond,
		80 * time.Millisecond: 5 * time.Millisecond,
		time.Hour:             longestPoll,
		-time.Second:          time.Millisecond,
	} {
		if got := pollAfter(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}

// TestLossTimeoutIsSeenAtItsEnd: the owner of a queue looks at the loss timeout
// when that ends, and not before. It then runs from when the target was there
// last.
func TestLossTimeoutIsSeenAtItsEnd(t *testing.T) {
	const timeout = time.Hour
	began := time.Unix(1, 0)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	type world struct {
		clock   *setClock
		k       *reconnector
		session *session
		redial  *redialer
	}
	lose := func(w *world, minutes int) {
		w.session.ended.Set()
		w.k.update(func() { w.k.lostAt = at(minutes) })
	}
	refuse := func(w *world, minutes int, final bool) {
		w.clock.now = at(minutes)
		w.redial.noteRefusal(final)
	}
	for name, c := range map[string]struct {
		happens func(w *world)
		minutes int // from which on requests fail; 0: they wait
	}{
		"nothing":                      {func(*world) {}, 0},
		"lost at the begin":            {func(w *world) { lose(w, 0) }, 60},
		"lost later":                   {func(w *world) { lose(w, 50) }, 110},
		"lost, and not noticed yet":    {func(w *world) { w.session.ended.Set() }, 0},
		"present at an attempt":        {func(w *world) { lose(w, 0); w.k.presentAt, w.k.present = at(40), true }, 0},
		"present at one before":        {func(w *world) { lose(w, 0); w.k.presentAt = at(40) }, 100},
		"refuses the queue":            {func(w *world) { refuse(w, 55, false) }, 0},
		"refuses the queue for good":   {func(w *world) { refuse(w, 20, true); refuse(w, 55, true) }, 80},
		"refused it for good":          {func(w *world) { refuse(w, 20, true); refuse(w, 55, false) }, 0},
		"refuses it, and is another":   {func(w *world) { refuse(w, 10, true); w.k.returnedAt = at(30) }, 90},
		"refuses it for good, is lost": {func(w *world) { refuse(w, 20, true); lose(w, 30) }, 90},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &setClock{sched.Real, began}
			s := &session{ended: clock.NewEvent()}
			d := &Device{cfg: Config{Scheduler: clock}}
			d.reconnector = &reconnector{device: d, scheduler: clock, session: s, changed: clock.NewEvent()}
			w := &world{clock, d.reconnector, s, &redialer{device: d}}
			a := reconnectState{timeout: timeout, until: began.Add(timeout), pending: w.redial}
			c.happens(w)
			clock.now = began
			polls := 0
			for d, ok := a.wait(); !a.expired && polls < 100 && clock.now.Before(at(600)); d, ok = a.wait() {
				if polls++; ok {
					clock.now = clock.now.Add(d)
				} else if expired := a.expire(); expired != a.expired {
					t.Errorf("expire returns %v, and the state says %v", expired, a.expired)
				}
			}
			switch passed := clock.now.Sub(began); {
			case !a.expired && c.minutes != 0:
				t.Errorf("requests wait for %v, want %d minutes", passed, c.minutes)
			case a.expired && passed != time.Duration(c.minutes)*time.Minute:
				t.Errorf("requests fail after %v, want %d minutes, 0 for never", passed, c.minutes)
			}
			if polls > 22 { // two for each hour
				t.Errorf("the owner polls %d times in %v", polls, clock.now.Sub(began))
			}
		})
	}
	forever := reconnectState{}
	if d, ok := forever.wait(); d >= 0 || !ok {
		t.Errorf("without a limit the owner sleeps for %v, %v", d, ok)
	}
}
