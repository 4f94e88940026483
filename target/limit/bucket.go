package limit

import "time"

// bucket is the state of two rates, as the times until which they are used up.
// It is the generic cell rate algorithm: a request may begin as long as no more
// than the burst is used ahead, however much it costs itself, so that over time
// the rate is met exactly by requests of any length.
type bucket struct {
	rates Rates
	used  cost // until when; times of the clock
}

func (b *bucket) burst() time.Duration {
	if b.rates.Burst == 0 {
		return DefaultBurst
	}
	return b.rates.Burst
}

// wait returns how long a request has to wait; not positive if it need not.
func (b *bucket) wait(now time.Duration) time.Duration {
	if !b.rates.Limited() {
		return 0
	}
	return b.used.longer() - b.burst() - now
}

// charge adds the cost of a request.
func (b *bucket) charge(c cost, now time.Duration) {
	b.used.requests = max(b.used.requests, now) + c.requests
	b.used.bytes = max(b.used.bytes, now) + c.bytes
}
