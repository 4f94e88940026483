package initiator

import (
	"math"
	"testing"
	"time"
)

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
// millisecond at least and by reconnectPoll at most.
func TestPollAfter(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		0:                     time.Millisecond,
		80 * time.Millisecond: 5 * time.Millisecond,
		time.Hour:             reconnectPoll,
		-time.Second:          time.Millisecond,
	} {
		if got := pollAfter(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}
