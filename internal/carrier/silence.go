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

	// MostSilence bounds the silence: who delays its answers gains no more.
	MostSilence = 10 * time.Second
)

// KeepalivePeriod returns the time between two keepalives of an interval as
// configured, where an answer takes so long.
func KeepalivePeriod(interval, answer time.Duration) time.Duration {
	return max(interval, min(answersPerKeepalive*answer, MostSilence/4))
}

// SilentIntervals returns after how many silent intervals in a row a peer is
// dead where an answer takes so long: the last one may be shorter, and the
// silence began up to an interval before. It is not less than least.
func SilentIntervals(least int, interval, answer time.Duration) int {
	silence := min(answersInSilence*answer, MostSilence)
	return max(least, int(silence/interval)-1)
}
