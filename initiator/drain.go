package initiator

import (
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// A target that goes down answers what is in flight, and refuses new commands.
// The initiator learns of it by the event go away or the first refusal. It logs
// out when its queues have taken every answer: the logout would cut off what is
// in flight, and what is not answered is executed again.
//
// A queue stores inFlight before it loads session.draining, and the reconnector
// loads them in the other order, so one of them sees the other.

// The successor of a target that drained is asked for often at first: most
// targets that end in order are started again at once.
const (
	successorTime  = 10 * time.Second
	successorDelay = 100 * time.Millisecond
)

// A target that a successor takes over from says so in the event go away, with
// the longest pause between attempts: the successor waits for the end of the
// target and serves. announcedTime bounds how long it is believed.
const announcedTime = 2 * time.Second

// goAway handles the event go away.
func (s *session) goAway(v *wire.Event) {
	s.retryAfter.Store(v.RetryAfter)
	s.beginDrain() // the logout tells what is durable
}

// setActive publishes whether the queue has commands without an answer.
func (q *Queue) setActive(active bool) {
	if q.active != active {
		q.active = active
		q.inFlight.Store(active)
		if active {
			q.path.active.Add(1)
		} else {
			q.path.active.Add(-1)
		}
	}
}

// longestPoll is the longest interval of a poll for what no event tells.
const longestPoll = 10 * time.Millisecond

// pollAfter returns the interval of a poll for what has been awaited for some
// time: it adds little to a short wait, and costs little during a long one.
func pollAfter(waited time.Duration) time.Duration {
	return min(max(waited/16, time.Millisecond), longestPoll)
}

// awaitAnswers waits until no command is in flight, or until the session ends,
// whose target drains: it bounds the time.
func (k *reconnector) awaitAnswers(s *session) {
	began := k.scheduler.Now()
	for k.quit.Err() == nil && !s.ended.IsSet() && k.device.inFlight() {
		k.scheduler.Wait(k.quit, pollAfter(k.scheduler.Now().Sub(began)), s.ended)
	}
}

// inFlight reports whether a queue has a command in flight.
func (d *Device) inFlight() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.conns {
		if q != nil && q.inFlight.Load() {
			return true
		}
	}
	return false
}
