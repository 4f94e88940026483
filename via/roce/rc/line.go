package rc

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// Line is the way to one host. All QPs of this end with peers there share it:
// it bounds the payload that they have in flight together, in packets, until it
// is acknowledged. The windows of the QPs cannot: a hundred of the least window
// fill the queue of a slow link for seconds, and each packet waits for those of
// all others.
//
//   - The window is small while nothing is known, and doubles with each round
//     trip in which it is the limit: the first packets tell what the line is
//     like, and a fast one soon has no limit. A window that is not used shrinks
//     again, as the line may change meanwhile, and one that is less than the
//     first grows to it also without use.
//   - QPs that find no room acquire tickets, and get room in the order of
//     these, so that each has a part.
//   - It shrinks while packets wait in queues for longer than maxLineQueueing,
//     down to one packet. A long round trip counts only if none that began
//     later was short: a queue holds up all packets, a peer its own.
//   - After linePause without an answer it is one packet, and doubles up to
//     half of what it was.
//   - The shortest round trip stays valid until a line that is slow has been
//     drained: the first ones after a pause may all wait in a queue.
//
// QPs of several goroutines use a Line. They share numbers only: a QP that
// finds no room asks again a while later.
type Line struct {
	window   atomic.Int64 // packets
	inFlight atomic.Int64 // packets
	peak     atomic.Int64 // the most in flight since the last review
	limited  atomic.Bool  // a QP found no room
	timeout  atomic.Int64 // of the round trips of all QPs, ns
	longest  atomic.Int64 // the longest timeout of late, ns
	answer   atomic.Int64 // that, or the longest wait for room, ns
	tickets  atomic.Int64 // that QPs without room have acquired
	served   atomic.Int64 // of these, that got room or gave up
	arrived  atomic.Int64 // packets that are not in flight any more
	aliveAt  atomic.Int64 // when the last round trip was measured

	// mu is never waited for: one round trip more or less does not matter.
	mu sync.Mutex
	// +checklocks:mu
	trip roundTrip
	// +checklocks:mu
	least time.Duration // the shortest round trip; 0: not known
	// +checklocks:mu
	leastAt time.Duration // when one was about as short
	// +checklocks:mu
	shortAt time.Duration // when a round trip was short
	// +checklocks:mu
	long bool // the last round trip was
	// +checklocks:mu
	threshold int64 // above it growth is slow
	// +checklocks:mu
	changedAt time.Duration
	// +checklocks:mu
	arrivedAt int64 // arrived, when the window grew
	// +checklocks:mu
	shrunkAt time.Duration
	// +checklocks:mu
	reviewAt time.Duration
	// +checklocks:mu
	drain drain
}

// drain empties the queues of a slow line whose shortest round trip is too old:
// as long as it is busy, each one waits in a queue.
type drain struct {
	from, until time.Duration // at from, what was sent before has arrived; 0: none
	window      int64         // of before
}

const (
	firstLineWindow = 16
	leastLineWindow = 1

	// A round trip is short, or long, by twice the shortest one and the time
	// that packets wait in queues. The longer one is less than a keepalive may
	// take.
	minLineQueueing = 10 * time.Millisecond
	maxLineQueueing = 100 * time.Millisecond

	// linePause is the time without an answer that a few losses do not take.
	linePause = 50 * time.Millisecond

	// lineProbe is how many packets arrive before the window grows beyond the
	// first: many a slow line takes a burst at once, and looks fast until then.
	lineProbe = 256

	// samplePause is the time between two round trips that a line with room
	// learns from.
	samplePause = 500 * time.Microsecond

	// lineReview is how often the window is compared with its use.
	lineReview = 250 * time.Millisecond

	// lineMemory is how long growth is slow where the line was full.
	lineMemory = 10 * time.Second

	// retries is how often the first QP without room asks for it in the time that
	// the line takes a packet.
	retries = 8

	leastRetry = time.Microsecond
	mostRetry  = 250 * time.Millisecond
)

// smallWork is the length of a message that no line holds up: a command, an
// answer, a keepalive.
const smallWork = 256

// NewLine returns the line to a host of which nothing is known.
func NewLine() *Line {
	l := &Line{threshold: maxWindow}
	l.window.Store(firstLineWindow)
	return l
}

// AnswerTime returns how long an answer may take, by the slowest round trips of
// late and the wait for room; 0 on a fast line.
func (l *Line) AnswerTime() time.Duration { return time.Duration(l.answer.Load()) }

// slowest returns how long an answer takes once the request is on the line.
func (l *Line) slowest() time.Duration { return time.Duration(l.longest.Load()) }

// room returns how many more packets may be in flight. It may be negative.
func (l *Line) room() int { return int(l.window.Load() - l.inFlight.Load()) }

// slow reports whether the line was full of late.
func (l *Line) slow() bool { return l.window.Load() < firstLineWindow }

// part returns how many packets a QP gets that has waited for room, and how
// many a piece of a Read has at most: of a small window, each QP is to have a
// part.
func (l *Line) part() int {
	w := int(l.window.Load())
	if w < firstLineWindow {
		return max(w/somePieces, 1)
	}
	return w
}

// add adds packets in flight; n may be negative.
func (l *Line) add(n int) {
	if n < 0 {
		l.arrived.Add(int64(-n))
	}
	if now := l.inFlight.Add(int64(n)); now > l.peak.Load() {
		l.peak.Store(now) // a higher one of another goroutine may be lost
	}
}

// acquireTicket returns the ticket of a QP that has found no room.
func (l *Line) acquireTicket() int64 {
	if !l.limited.Load() {
		l.limited.Store(true)
	}
	return l.tickets.Add(1)
}

// releaseTicket ends a ticket, whose QP got room, or needs none any more.
func (l *Line) releaseTicket() { l.served.Add(1) }

// waiting reports whether QPs have tickets.
func (l *Line) waiting() bool { return l.tickets.Load() != l.served.Load() }

// before returns how many tickets before one, which may be 0 for the next, wait
// for room. Of those that got it out of their order only the number is known,
// which is enough: as many others come later.
func (l *Line) before(ticket int64) int {
	if ticket == 0 {
		ticket = l.tickets.Load() + 1
	}
	return max(int(ticket-1-l.served.Load()), 0)
}

// roomFor returns how many packets a QP with a ticket, or with none, may send:
// one is left for each ticket before its own. While others wait it is a part.
func (l *Line) roomFor(ticket int64) int {
	if !l.waiting() {
		return l.room()
	}
	return min(l.room()-l.before(ticket), l.part())
}

// retry returns when a QP with a ticket asks again that has found no room since
// a time: when half of the packets have arrived that it waits for, and in parts
// of the time that the line takes a packet in the end. An answer may take as
// long as the wait, as far as round trips were measured in it.
func (l *Line) retry(ticket int64, since, now time.Duration) time.Duration {
	trip, alive := l.timeout.Load(), l.aliveAt.Load()
	if idle := int64(now) - alive; l.slow() && idle > max(trip, int64(lineReview)) {
		trip = idle // as far as anything is known
	}
	if wait := alive - int64(since); wait > l.answer.Load() {
		l.answer.Store(wait)
	}
	gap := time.Duration(trip / l.window.Load())
	missing := time.Duration(1 + l.before(ticket) - l.room())
	return now + min(max(missing*gap/2-gap/4, gap/retries, leastRetry), mostRetry)
}

// timedOut notes that a QP had no progress for d, and retransmits. If others
// had a short round trip meanwhile, that is the peer's matter. Else the line
// holds up packets for longer than anything that was measured: as long as each
// is retransmitted before its answer, no round trip is. A shorter pause is a
// loss, which the window of the QP answers.
//
// +checklocksignore
func (l *Line) timedOut(d, now time.Duration) {
	if d < linePause || !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	if l.shortAt <= now-d && l.changedAt <= now-d && l.drain.until == 0 {
		l.threshold, l.shrunkAt, l.changedAt = max(l.window.Load()/2, leastLineWindow), now, now
		l.window.Store(leastLineWindow)
	}
}

// measured adds a round trip that a QP measured, unless another one is being
// added, or it says nothing new: the line has room, and was as fast a moment
// ago. The analyzer does not follow TryLock.
//
// +checklocksignore
func (l *Line) measured(d, now time.Duration) {
	if d < minLineQueueing && !l.limited.Load() && int64(now) < l.aliveAt.Load()+int64(samplePause) {
		return
	}
	l.aliveAt.Store(int64(now))
	if l.mu.TryLock() {
		defer l.mu.Unlock()
		l.learn(d, now)
	}
}

// learn adds a round trip.
//
// +checklocks:l.mu
func (l *Line) learn(d, now time.Duration) {
	if l.drains(d, now) {
		return
	}
	short := d <= 2*l.least+minLineQueueing
	switch {
	case short || l.trip.smooth == 0:
		l.shortAt = now
	case now-d < l.shortAt:
		return // the peer took its time
	}
	if l.least == 0 || d < 2*l.least {
		l.least, l.leastAt = min(d, cmp.Or(l.least, d)), now
	}
	l.trip.add(d, now)
	l.timeout.Store(int64(l.trip.timeout()))
	l.longest.Store(max(l.longest.Load(), l.timeout.Load()))
	if !short && l.long {
		l.answer.Store(max(l.answer.Load(), l.longest.Load()))
	}
	l.long = !short
	if now >= l.reviewAt {
		l.review(now)
	}
	if now-d >= l.changedAt { // it was sent since
		l.adapt(d, now, short)
	}
}

// adapt changes the window after a round trip.
//
// +checklocks:l.mu
func (l *Line) adapt(d, now time.Duration, short bool) {
	w, queueing := l.window.Load(), d-2*l.least
	switch {
	case queueing > maxLineQueueing:
		w = min(w, l.peak.Load())
		w = max(w/2, w*int64(maxLineQueueing)/int64(queueing), leastLineWindow)
		l.threshold, l.shrunkAt = w, now
	case short && (w < firstLineWindow || l.arrived.Load()-l.arrivedAt >= lineProbe && l.limited.Swap(false)):
		if w < l.threshold {
			w *= 2
		} else {
			w += max(w/8, 1)
		}
		w = min(w, maxWindow)
	default:
		return
	}
	l.changedAt, l.arrivedAt = now, l.arrived.Load()
	l.window.Store(w)
}

// review compares the window with what was used of it, and forgets what is
// long ago.
//
// +checklocks:l.mu
func (l *Line) review(now time.Duration) {
	l.reviewAt = now + lineReview
	used := l.peak.Swap(l.inFlight.Load())
	if w := l.window.Load(); w > firstLineWindow {
		l.window.Store(max(min(w, 2*used), firstLineWindow))
	}
	l.longest.Store(max(l.longest.Load()*3/4, l.timeout.Load()))
	l.answer.Store(l.answer.Load() * 15 / 16)
	if now-l.shrunkAt > lineMemory {
		l.threshold = maxWindow
	}
}

// drains reports whether the queues of a slow line are being emptied, or begins
// to do so.
//
// +checklocks:l.mu
func (l *Line) drains(d, now time.Duration) bool {
	k := &l.drain
	if k.until == 0 {
		if !l.slow() || l.trip.smooth == 0 || now-l.leastAt <= minRTTAge {
			return false
		}
		k.window = l.window.Swap(leastLineWindow)
		k.from = now + l.trip.timeout()
		k.until = k.from + l.trip.timeout()
		l.least = 0
		return true
	}
	if now < k.from {
		return true
	}
	if l.least == 0 || d < l.least {
		l.least, l.leastAt = d, now
	}
	if now < k.until {
		return true
	}
	l.window.Store(k.window)
	*k = drain{}
	return false
}
