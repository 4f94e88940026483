package initiator

import (
	"encoding/binary"
	"io"
	"time"
)

// backoff is the pauses between attempts. Each is a random part of a limit that
// doubles: initiators that lost a target together do not return together.
type backoff struct {
	random io.Reader
	limit  time.Duration // of the last pause; 0 before the first
}

// firstDelay is the limit of the first pause.
const firstDelay = 20 * time.Millisecond

// A target that nothing listens for may be back soon: an attempt costs it
// nothing until then. One that refuses is asked less often.
const (
	absentTime  = 30 * time.Second
	absentDelay = 150 * time.Millisecond
)

// next returns the next pause, whose limit is most at the longest.
func (b *backoff) next(most time.Duration) time.Duration {
	b.limit = min(max(2*b.limit, firstDelay), most)
	var r [8]byte
	if _, err := io.ReadFull(b.random, r[:]); err != nil || b.limit <= 0 {
		return b.limit
	}
	return 1 + time.Duration(binary.LittleEndian.Uint64(r[:])%uint64(b.limit))
}
