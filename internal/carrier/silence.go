package carrier

import "time"

// On a slow line that many connections share, packets wait for all those of the
// others. So both ends bear longer silence there, by the round trips that they
// measured, and keepalives are rarer. Neither end needs to know what the other
// one measured: an initiator sends several keepalives in the time that the
// target waits.
const (
	answersPerKeepalive = 3
	answersInSilence    = 16

	// tickPhases is at how many times in an interval ticks come to be: each of
	// these costs a wake-up, and ticks at one time hold up what else there is.
	tickPhases = 4

	// MostSilence bounds the silence: who delays its answers gains no more.
	MostSilence = 10 * time.Second
)

// KeepalivePeriod returns the time between two keepalives of an interval as
// configured, where an answer takes so long.
func KeepalivePeriod(interval, answer time.Duration) time.Duration {
	return max(interval, min(answersPerKeepalive*answer, MostSilence/4))
}

// FirstTick returns the end of the first interval, off by at most half: all
// ticks with the same base are at one time.
func FirstTick(base, now time.Time, interval time.Duration) time.Time {
	return onGrid(base, now.Add(interval), interval)
}

// NextTick returns the end of the interval that begins now, after missed silent
// ones, where the peer is dead after silent of them. Ticks while it is heard
// are at few times, off by at most an eighth of an interval: one wake-up is for
// many. The last interval is shorter, so that no peer is silent for more than
// one more.
func NextTick(base, now time.Time, interval time.Duration, missed, silent int) time.Time {
	switch missed {
	case 0:
		return onGrid(base, now.Add(interval), interval/tickPhases)
	case silent - 1:
		return now.Add(interval - interval/4)
	default:
		return now.Add(interval)
	}
}

// onGrid returns the time next to t of a grid through base.
func onGrid(base, t time.Time, pitch time.Duration) time.Time {
	d := t.Add(-pitch / 2).Sub(base)
	r := d % pitch
	if r > 0 {
		r -= pitch
	}
	return base.Add(d - r)
}

// SilentIntervals returns after how many silent intervals in a row a peer is
// dead where an answer takes so long: the last one may be shorter, and the
// silence began up to an interval before. It is not less than least.
func SilentIntervals(least int, interval, answer time.Duration) int {
	silence := min(answersInSilence*answer, MostSilence)
	return max(least, int(silence/interval)-1)
}
