package initiator

import (
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
)

// keepalive watches the peer of a connection. It sends one keepalive per
// interval, unless the last one is unanswered, and declares the peer dead after
// maxMissed silent intervals. An interval is silent if no message arrives and
// the fabric tells of no life: a long transfer on a slow link has no message
// for many intervals. Where answers take long, keepalives are rarer, and a peer
// may be silent for longer. It counts its ticks, not the clock: a process that
// was stopped does not take its own pause for the peer's. One keepalive at a
// time is all that a stopped peer finds when it continues; more could overrun
// its receives.
type keepalive struct {
	scheduler   sched.Scheduler
	interval    time.Duration // ≤ 0: no keepalive
	awaitingAck bool          // a keepalive is unanswered
	next        time.Time
	base        time.Time     // of the grid of ticks
	active      bool          // a message arrived since the last tick
	life        uint64        // of the fabric, at the last tick
	wordless    int           // intervals in a row without a message
	missed      int           // silent ones in a row
	unsent      int           // since the last keepalive, or a packet that stands for one
	period      time.Duration // of keepalives, at the last tick
	proven      bool          // something else has shown since the last tick that the target is alive
	quiet       bool          // in the last interval, the target needed no message to show its life
	spared      bool          // the interval is the first in which it did not show it
	checked     uint32
}

// maxWordless is how many intervals in a row the fabric's word is taken for the
// peer's life. Messages of a sealed session cannot be forged, but packets can.
const maxWordless = 1200

// mostUnasked is for how many intervals in a row packets without a message put
// a keepalive off: less than the shortest silence that they may fill.
const mostUnasked = 40

// minKeepalive is the shortest interval: a target cannot keep its initiators
// busy with keepalives.
const minKeepalive = 10 * time.Millisecond

// newKeepalive returns a keepalive whose ticks are those of all others with the
// same base: then one wake-up is for all of them.
func newKeepalive(s sched.Scheduler, interval time.Duration, base time.Time) keepalive {
	b := keepalive{scheduler: s, interval: interval, base: base, active: true}
	if interval > 0 {
		b.interval = max(interval, minKeepalive)
		b.next = carrier.FirstTick(base, s.Now(), b.interval)
	}
	return b
}

func (b *keepalive) heard() { b.active = true }

// prove notes that the control connection of the path has shown that the target
// is alive, whatever holds up this connection.
func (b *keepalive) prove() { b.active, b.proven = true, true }

// seen takes the life of the fabric at the end of an interval, which the target
// alone changes, once in each interval of its own, see [via.VI.KeepAlive]. It
// reports whether that shows that the target is alive: then it sees what this
// end does of the kind, too, and both need few messages. The first interval
// without a change shows nothing: the last change may have come early in the
// interval before, and the next just after this one.
func (b *keepalive) seen(life uint64) bool {
	if life != b.life {
		b.proven, b.quiet = true, true
		return true
	}
	b.spared, b.quiet = b.quiet, false
	return b.spared
}

// provenIntervals is how many intervals a keepalive of an I/O connection is
// put off while the control connection has its own. It shows whether the
// connection still exists, not whether the target does.
const provenIntervals = 8

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

// tick ends an interval, at the end of which the life of the fabric is life,
// and an answer takes so long. It reports whether the peer is dead.
func (b *keepalive) tick(life uint64, answer time.Duration) bool {
	b.wordless++
	if b.active {
		b.wordless = 0
	}
	b.missed++
	if b.active || b.spared || life != b.life && b.wordless <= maxWordless {
		b.missed = 0
	}
	b.period = carrier.KeepalivePeriod(b.interval, answer)
	if b.proven {
		b.period = max(b.period, provenIntervals*b.interval)
	}
	b.unsent++
	if life != b.life && b.period > b.interval && b.wordless < mostUnasked {
		b.unsent = 0 // it proved to the peer that this end is alive, too
	}
	b.active, b.proven, b.spared, b.life = false, false, false, life
	silent := carrier.SilentIntervals(maxMissed, b.interval, answer)
	b.next = carrier.NextTick(b.base, b.scheduler.Now(), b.interval, b.missed, silent)
	return b.missed >= silent
}

// sends reports, after a tick, whether a keepalive is to be sent. Sends in
// flight prove that this end is alive: an unanswered one is enough.
func (b *keepalive) sends() bool {
	if b.awaitingAck || time.Duration(b.unsent)*b.interval < b.period {
		return false
	}
	b.unsent = 0
	return true
}
