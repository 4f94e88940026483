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

	// TickPhases is at how many times in an interval ticks come to be: each of
	// these costs a wake-up, and ticks at one time hold up what else there is.
	TickPhases = 4

	// MostSilence bounds the silence: who delays its answers gains no more.
	MostSilence = 10 * time.Second
)

// KeepalivePeriod returns the time between two keepalives of an interval as
// configured, where an answer takes so long.
func KeepalivePeriod(interval, answer time.Duration) time.Duration {
	return max(interval, min(answersPerKeepalive*answer, MostSilence/4))
}

// NextTick returns the end of an interval that begins now, off by at most half
// the pitch of a grid of times through base, on which it is: ticks at one time
// cost one wake-up. Ticks on the grid come once an interval.
func NextTick(base, now time.Time, interval, pitch time.Duration) time.Time {
	d := now.Add(interval - pitch/2).Sub(base)
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
