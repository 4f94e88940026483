package main

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// TestReattachAttempts: processes that lost a target together do not return to
// it together: the pauses are random, and not longer than the longest one. The
// last attempt is at the end of the time.
func TestReattachAttempts(t *testing.T) {
	const timeout, delay = time.Minute, time.Second
	away := &exit{exitTryAgain, errors.New("nothing listens there")}
	run := func() (pauses []time.Duration) {
		now := time.Now()
		end := now.Add(timeout)
		a := attempts{timeout: timeout, delay: delay, now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler), wait: func(d time.Duration) bool {
			pauses, now = append(pauses, d), now.Add(d)
			return true
		}}
		if _, err := a.until(func() (*remoteDisk, error) { return nil, away }); !errors.Is(err, away) || !now.Equal(end) {
			t.Errorf("%v, %v before the end", err, end.Sub(now))
		}
		return pauses
	}
	one, two := run(), run()
	if n := min(len(one), len(two)); slices.Equal(one[:n], two[:n]) {
		t.Errorf("two processes pause alike: %v", one)
	}
	if first, longest := one[0], slices.Max(one); first > 20*time.Millisecond || longest > delay || longest < delay/2 {
		t.Errorf("the first pause is %v, the longest %v", first, longest)
	}
}

// TestReattachGivesUp: a process does not try again after an error that stays,
// or when it is to end.
func TestReattachGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int // attempts
	}{
		"refused":          {errors.New("another client wrote"), 1},
		"told to end":      {&exit{exitTryAgain, errors.New("away")}, 3},
		"then it is there": {nil, 1},
		"no permission":    {&exit{exitPermission, errors.New("no")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n, waits := 0, 0
			a := attempts{timeout: time.Hour, delay: time.Second, now: time.Now, log: slog.New(slog.DiscardHandler), wait: func(time.Duration) bool {
				waits++
				return waits < 3
			}}
			_, err := a.until(func() (*remoteDisk, error) { n++; return nil, c.err })
			if n != c.want || !errors.Is(err, c.err) {
				t.Errorf("%d attempts, then %v", n, err)
			}
		})
	}
}
