package target

import "time"

// idleKeepalive is the interval of the periodic check of an idle I/O
// connection.
const idleKeepalive = time.Minute

// peerWatch tells whether the initiator of a control connection is alive.
type peerWatch struct {
	loggedIn time.Time
	next     time.Time // when the interval ends
	heard    bool      // a message arrived in this interval
	missed   int       // silent intervals in a row
}

// tick ends an interval and begins the next. It reports whether the initiator
// is dead.
func (p *peerWatch) tick(now time.Time, interval time.Duration) bool {
	if p.heard {
		p.missed = 0
	} else {
		p.missed++
	}
	p.heard = false
	p.next = now.Add(interval)
	return p.missed >= maxMissedKeepalives
}

// within ends the interval after d at the latest.
func (p *peerWatch) within(now time.Time, d time.Duration) {
	if soon := now.Add(d); p.next.After(soon) {
		p.next = soon
	}
}
