package carrier

import (
	"testing"
	"time"
)

// TestSilence: an answer that takes long extends the silence that a peer may
// keep, up to a limit, and keepalives are rarer in proportion. On a fast line
// nothing changes.
func TestSilence(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		interval, answer, period time.Duration
		silent                   int
	}{
		{250 * ms, 0, 250 * ms, 3},
		{250 * ms, ms, 250 * ms, 3},
		{250 * ms, 62 * ms, 250 * ms, 3},
		{250 * ms, 100 * ms, 300 * ms, 5},
		{250 * ms, 500 * ms, 1500 * ms, 31},
		{250 * ms, time.Second, 2500 * ms, 39},
		{250 * ms, time.Hour, 2500 * ms, 39},
		{10 * ms, 100 * ms, 300 * ms, 159},
		{10 * time.Second, 100 * ms, 10 * time.Second, 3},
		{10 * time.Second, time.Hour, 10 * time.Second, 3},
	} {
		if got := KeepalivePeriod(c.interval, c.answer); got != c.period {
			t.Errorf("interval %v, answer %v: a keepalive every %v, not %v", c.interval, c.answer, got, c.period)
		}
		got := SilentIntervals(3, c.interval, c.answer)
		if got != c.silent {
			t.Errorf("interval %v, answer %v: %d silent intervals, not %d", c.interval, c.answer, got, c.silent)
		}
		if most := time.Duration(got+1) * c.interval; most > max(MostSilence, 4*c.interval) {
			t.Errorf("interval %v, answer %v: silent for %v", c.interval, c.answer, most)
		}
	}
}
