package rc

import "time"

// roundTrip is the round-trip time of packets (RFC 6298).
type roundTrip struct {
	smooth, variation time.Duration // 0 before the first
	at                time.Duration // when the last one was measured
}

// add adds a measured one.
func (r *roundTrip) add(d, now time.Duration) {
	r.at = now
	if r.smooth == 0 {
		r.smooth, r.variation = d, d/2
		return
	}
	r.variation += ((r.smooth - d).Abs() - r.variation) / 4
	r.smooth += (d - r.smooth) / 8
}

// timeout returns how long an answer may take: 0 before the first.
func (r *roundTrip) timeout() time.Duration { return r.smooth + 4*r.variation }
