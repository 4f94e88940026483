package initiator

import "time"

// beat watches a connection's life: it asks the peer once an interval, unless an
// earlier question is not answered, and gives up after missedBeats intervals
// without a word. It counts its own ticks, not the clock: a process that was
// stopped does not take its own absence for the peer's. One question at a time
// is all that a peer which was stopped finds waiting when it goes on: more could
// overrun its receives.
type beat struct {
	interval time.Duration // ≤ 0: no heartbeat
	asked    bool          // a question is not answered
	next     time.Time
	life     bool // something arrived since the last tick
	missed   int
	checked  uint32
}

// leastBeat keeps a target from making its initiators busy with heartbeats.
const leastBeat = 10 * time.Millisecond

func newBeat(interval time.Duration) beat {
	if interval > 0 {
		interval = max(interval, leastBeat)
	}
	return beat{interval: interval, next: time.Now().Add(interval), life: true}
}

func (b *beat) heard() { b.life = true }

// acknowledged says that the question was answered.
func (b *beat) acknowledged() { b.asked = false }

// wait returns how long the owner may sleep, negative for as long as it likes, or
// false if a tick is due.
func (b *beat) wait() (time.Duration, bool) {
	if b.interval <= 0 {
		return -1, true
	}
	d := time.Until(b.next)
	return d, d > 0
}

// clockTurns is how many turns pass between looks at the clock.
const clockTurns = 64

// due reports whether the interval is over. A busy queue looks at the clock only
// now and then.
func (b *beat) due() bool {
	if b.interval <= 0 {
		return false
	}
	if b.checked++; b.checked%clockTurns != 0 && b.life {
		return false
	}
	return !time.Now().Before(b.next)
}

// tick ends an interval. It reports whether the peer is to be given up.
func (b *beat) tick() bool {
	b.next = time.Now().Add(b.interval)
	if b.life {
		b.missed = 0
	} else {
		b.missed++
	}
	b.life = false
	return b.missed > missedBeats
}
