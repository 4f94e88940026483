package wire

import "time"

// Timeout is a time as the connection manager encodes it, 5 bits: 4.096 µs
// doubled as often as the code says. As the local acknowledge timeout of a queue
// pair 0 means never.
type Timeout uint8

// maxTimeout is the longest: 2 h 26 min.
const maxTimeout Timeout = 31

// timeoutUnit is the time of code 0.
const timeoutUnit = 4096 * time.Nanosecond

// TimeoutFor returns the code of the shortest time that is not below d, or of
// the longest there is.
func TimeoutFor(d time.Duration) Timeout {
	t := Timeout(0)
	for t < maxTimeout && t.Duration() < d {
		t++
	}
	return t
}

// Duration returns the time. Only the low 5 bits count.
func (t Timeout) Duration() time.Duration { return timeoutUnit << (t & maxTimeout) }
