package initiator

import (
	"time"

	"github.com/viablk/viablk/internal/sched"
)

// keepalive watches the peer of a connection. It sends one keepalive per
// interval, unless the last one is unanswered, and declares the peer dead after
// maxMissed silent intervals. An interval is silent if no message arrives and
// the fabric tells of no life: a long transfer on a slow link has no message
// for many intervals. It counts its ticks, not the clock: a process that was
// stopped does not take its own pause for the peer's. One keepalive at a time
// is all that a stopped peer finds when it continues; more could overrun its
// receives.
type keepalive struct {
	scheduler   sched.Scheduler
	interval    time.Duration // ≤ 0: no keepalive
	awaitingAck bool          // a keepalive is unanswered
	next        time.Time
	active      bool   // a message arrived since the last tick
	life        uint64 // of the fabric, at the last tick
	wordless    int    // intervals in a row without a message
	missed      int    // silent ones in a row
	checked     uint32
}

// maxWordless is how many intervals in a row the fabric's word is taken for the
// peer's life. Messages of a sealed session cannot be forged, but packets can.
const maxWordless = 1200

// minKeepalive is the shortest interval: a target cannot keep its initiators
// busy with keepalives.
const minKeepalive = 10 * time.Millisecond

func newKeepalive(s sched.Scheduler, interval time.Duration) keepalive {
	if interval > 0 {
		interval = max(interval, minKeepalive)
	}
	return keepalive{scheduler: s, interval: interval, next: s.Now().Add(interval), active: true}
}

func (b *keepalive) heard() { b.active = true }

// acknowledged notes that the peer answered the keepalive.
func (b *keepalive) acknowledged() { b.awaitingAck = false }

// wait returns how long the owner may sleep, negative for no limit, or false if
// a tick is due.
func (b *keepalive) wait() (time.Duration, bool) {
	if b.interval <= 0 {
		return -1, true
	}
	d := b.next.Sub(b.scheduler.Now())
	return d, d > 0
}

// clockIterations is how many iterations of a busy queue pass between reads of
// the clock.
const clockIterations = 64

// due reports whether the interval is over. A busy queue reads the clock once
// in clockIterations.
func (b *keepalive) due() bool {
	if b.interval <= 0 {
		return false
	}
	if b.checked++; b.checked%clockIterations != 0 && b.active {
		return false
	}
	return !b.scheduler.Now().Before(b.next)
}

// tick ends an interval, at the end of which the life of the fabric is life. It
// reports whether the peer is dead.
func (b *keepalive) tick(life uint64) bool {
	b.wordless++
	if b.active {
		b.wordless = 0
	}
	b.missed++
	if b.active || life != b.life && b.wordless <= maxWordless {
		b.missed = 0
	}
	b.active, b.life = false, life
	wait := b.interval
	if b.missed == maxMissed-1 {
		wait -= wait / 4 // so that no peer is silent for more than maxMissed+1
	}
	b.next = b.scheduler.Now().Add(wait)
	return b.missed >= maxMissed
}
