package target

import (
	"time"

	"github.com/viablk/viablk/internal/carrier"
)

// idleKeepalive is the interval of the periodic check of an idle I/O
// connection.
const idleKeepalive = time.Minute

// peerWatch tells whether the initiator of a control connection is alive: a
// message arrives, or the fabric tells of life on any connection of its
// session.
type peerWatch struct {
	base     time.Time // of the grid of ticks
	loggedIn time.Time
	next     time.Time // when the interval ends
	heard    bool      // a message arrived in this interval
	life     uint64    // of the fabric, at the end of the last one
	wordless int       // intervals in a row without a message
	missed   int       // silent intervals in a row
}

// maxWordless is how many intervals in a row the fabric's word is taken for the
// initiator's life. Messages of a sealed session cannot be forged, but packets
// can.
const maxWordless = 1200

// tick ends an interval, at the end of which the life of the fabric is life and
// an answer takes so long, and begins the next. It reports whether the
// initiator is dead.
func (p *peerWatch) tick(now time.Time, interval time.Duration, life uint64, answer time.Duration) bool {
	p.wordless++
	if p.heard {
		p.wordless = 0
	}
	p.missed++
	if p.heard || life != p.life && p.wordless <= maxWordless {
		p.missed = 0
	}
	p.heard, p.life = false, life
	silent := carrier.SilentIntervals(maxMissedKeepalives, interval, answer)
	p.next = carrier.NextTick(p.base, now, interval, p.missed, silent)
	return p.missed >= silent
}

// within ends the interval after d at the latest.
func (p *peerWatch) within(now time.Time, d time.Duration) {
	if soon := now.Add(d); p.next.After(soon) {
		p.next = soon
	}
}
