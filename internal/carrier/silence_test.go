package carrier

import (
	"testing"
	"time"
)

// TestNextTick: an interval ends on the grid and is off by at most half its
// pitch. Ticks that are on the grid stay there, one an interval, though each is
// a little late. While the peer is silent, intervals are exact.
func TestNextTick(t *testing.T) {
	const interval, silent = time.Second, 3
	base := time.Now()
	next := func(now time.Time) time.Time { return NextTick(base, now, interval, 0, silent) }
	first := func(now time.Time) time.Time { return FirstTick(base, now, interval) }
	for offset := -3 * time.Second; offset < 3*time.Second; offset += 7 * time.Millisecond {
		now := base.Add(offset)
		for _, c := range []struct {
			tick  func(time.Time) time.Time
			pitch time.Duration
		}{{first, interval}, {next, interval / 4}} {
			at := c.tick(now)
			if off := at.Sub(base) % c.pitch; off != 0 {
				t.Fatalf("pitch %v, %v after the base: %v off the grid", c.pitch, offset, off)
			}
			if d := at.Sub(now); d < interval-c.pitch/2 || d > interval+c.pitch/2 {
				t.Fatalf("pitch %v, %v after the base: an interval of %v", c.pitch, offset, d)
			}
		}
		tick := next(now)
		for late := time.Duration(0); late < interval/8; late += interval / 64 {
			if after := next(tick.Add(late)); after.Sub(tick) != interval {
				t.Fatalf("%v after the base a tick that is %v late, the next is %v after it", offset, late, after.Sub(tick))
			}
		}
		if d := NextTick(base, now, interval, 1, silent).Sub(now); d != interval {
			t.Fatalf("%v after a silent interval", d)
		}
		if d := NextTick(base, now, interval, silent-1, silent).Sub(now); d != interval*3/4 {
			t.Fatalf("the last interval is %v", d)
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
