package wire

import "time"

// Timeout is a time as the connection manager encodes it: 5 bits n for 4.096 µs
// · 2ⁿ. As the local acknowledge timeout of a queue pair 0 means never.
type Timeout uint8

// maxTimeout is the longest time: 2 h 26 min.
const maxTimeout Timeout = 31

// timeoutUnit is the time of code 0.
const timeoutUnit = 4096 * time.Nanosecond

// TimeoutFor returns the code of the shortest time not below d, or of the
// longest.
func TimeoutFor(d time.Duration) Timeout {
	t := Timeout(0)
	for t < maxTimeout && t.Duration() < d {
		t++
	}
	return t
}

// Duration returns the time. Only the low 5 bits count.
func (t Timeout) Duration() time.Duration { return timeoutUnit << (t & maxTimeout) }
