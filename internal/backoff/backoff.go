// Package backoff paces the attempts to reach a peer that is away.
package backoff

import (
	"encoding/binary"
	"io"
	"time"
)

// Backoff is the pauses between attempts. Each is a random part of a limit that
// doubles: processes that lost a peer together do not return together.
type Backoff struct {
	Random io.Reader     // without numbers from it, pauses are as long as their limits
	limit  time.Duration // of the last pause; 0 before the first
}

// firstDelay is the limit of the first pause.
const firstDelay = 20 * time.Millisecond

// Next returns the next pause, whose limit is most at the longest.
func (b *Backoff) Next(most time.Duration) time.Duration {
	b.limit = min(max(2*b.limit, firstDelay), most)
	var r [8]byte
	if _, err := io.ReadFull(b.Random, r[:]); err != nil || b.limit <= 0 {
		return b.limit
	}
	return 1 + time.Duration(binary.LittleEndian.Uint64(r[:])%uint64(b.limit))
}
