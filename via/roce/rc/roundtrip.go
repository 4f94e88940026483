package rc

import "time"

// minRTTAge is how long the shortest round trip stays valid.
const minRTTAge = 10 * time.Second

// roundTrip is the round-trip time of packets (RFC 6298).
type roundTrip struct {
	smooth, variation time.Duration // 0 before the first
	least             time.Duration // the shortest recent one
	leastAt           time.Duration
	at                time.Duration // when the last one was measured
}

// add adds a measured one.
func (r *roundTrip) add(d, now time.Duration) {
	d, r.at = max(d, 1), now
	if r.least == 0 || d < r.least || now-r.leastAt > minRTTAge {
		r.least, r.leastAt = d, now
	}
	if r.smooth == 0 {
		r.smooth, r.variation = d, d/2
		return
	}
	r.variation += ((r.smooth - d).Abs() - r.variation) / 4
	r.smooth += (d - r.smooth) / 8
}

// timeout returns how long an answer may take: 0 before the first.
func (r *roundTrip) timeout() time.Duration { return r.smooth + 4*r.variation }
