package carrier

import (
	"testing"
	"time"
)

// TestNextTick: an interval ends on the grid and is off by at most half its
// pitch. Ticks that are on the grid stay there, one an interval, though each is
// a little late.
func TestNextTick(t *testing.T) {
	const interval = time.Second
	base := time.Now()
	for _, pitch := range []time.Duration{interval, interval / 4, 10 * time.Millisecond} {
		for offset := -3 * time.Second; offset < 3*time.Second; offset += 7 * time.Millisecond {
			now := base.Add(offset)
			next := NextTick(base, now, interval, pitch)
			if off := next.Sub(base) % pitch; off != 0 {
				t.Fatalf("pitch %v, %v after the base: %v off the grid", pitch, offset, off)
			}
			if d := next.Sub(now); d < interval-pitch/2 || d > interval+pitch/2 {
				t.Fatalf("pitch %v, %v after the base: an interval of %v", pitch, offset, d)
			}
			if pitch > interval/4 {
				continue
			}
			for late := time.Duration(0); late < pitch/2; late += pitch / 16 {
				if after := NextTick(base, next.Add(late), interval, pitch); after.Sub(next) != interval {
					t.Fatalf("pitch %v: %v after the base a tick that is %v late, the next is %v after it", pitch, offset, late, after.Sub(next))
				}
			}
		}
	}
}

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
