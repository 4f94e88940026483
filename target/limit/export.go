package limit

import (
	"math"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Export is a disk behind limits. It is safe for concurrent use.
//
// Whose turn it is decides start-time fair queueing: each session has a virtual
// time that advances by the cost of its requests, and of the requests that wait the
// one that started first goes first. Every queue of a session has one request in
// this competition, so that neither a deep queue nor many queues gain anything,
// and sessions that always have something to ask for share equally, in time of
// the rate that they use up. The next of the queue takes its place at once, without
// the queue's owner, who may sleep longer than a request takes: who wakes up late
// finds all that was let through meanwhile. A session that has nothing to ask for
// during a burst keeps its place.
type Export struct {
	device block.Device
	clock  func() time.Duration

	mu      sync.Mutex
	shared  bucket
	each    Rates
	virtual time.Duration // when the last request that was let through started
	waiting []*line       // not sorted: there are as many as busy queues
	clients map[string]*Session

	counters Counters
}

// NewExport returns device behind limits: shared are those of all sessions
// together, each those of every session. The device belongs to the export.
func NewExport(device block.Device, shared, each Rates) (*Export, error) {
	if err := shared.Validate(); err != nil {
		return nil, err
	}
	if err := each.Validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	return &Export{
		device: device,
		clock:  func() time.Duration { return time.Since(began) },
		shared: bucket{rates: shared},
		each:   each,
	}, nil
}

// Session returns the disk for a client without a name. It is no more than memory:
// a session that nobody uses any more needs no end.
func (e *Export) Session() *Session {
	return &Session{export: e, own: bucket{rates: e.each}}
}

// Device returns the disk without limits.
func (e *Export) Device() block.Device { return e.device }

// Close closes the disk.
func (e *Export) Close() error { return e.device.Close() }

// Session is the disk as one client sees it.
type Session struct {
	export *Export

	// Guarded by the export's lock.
	own      bucket
	virtual  time.Duration // when its next request starts
	queues   int           // open, or about to be
	counters Counters
}

// Info implements [block.Device].
func (s *Session) Info() block.Info { return s.export.device.Info() }

// Survival implements [block.Surviving].
func (s *Session) Survival() block.Survival { return block.SurvivalOf(s.export.device) }

// Close implements [block.Device]. The disk stays open.
func (s *Session) Close() error { return nil }

// join adds a request to a line, whose ring has room.
func (e *Export) join(l *line, r *block.Request) {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.joinLocked(l, r, now)
}

func (e *Export) joinLocked(l *line, r *block.Request, now time.Duration) {
	l.push(waiter{r, now})
	if l.waits == 1 {
		e.enter(l)
	}
}

// ask is join and turn for the only request of a line.
func (e *Export) ask(l *line, r *block.Request, dst []*block.Request) (n int, wait time.Duration) {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.joinLocked(l, r, now)
	return e.turnLocked(l, dst, now)
}

// turn lets through what may go now, of any line, moves to dst what was let through
// of this one, and returns how many requests that are. If the line still waits for
// more, it returns how long before asking again.
func (e *Export) turn(l *line, dst []*block.Request) (n int, wait time.Duration) {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.turnLocked(l, dst, now)
}

func (e *Export) turnLocked(l *line, dst []*block.Request, now time.Duration) (n int, wait time.Duration) {
	e.advance(now)
	n = l.take(dst)
	if l.waits == 0 {
		return n, never
	}
	return n, e.patience(l, now)
}

// enter puts the first request of a line that waits into the competition.
func (e *Export) enter(l *line) {
	s := l.session
	l.start = max(e.virtual-e.shared.burst(), s.virtual)
	s.virtual = l.start + e.shared.rates.costOf(l.first().request).longer()
	e.waiting = append(e.waiting, l)
}

// leave lets all of a line through, before its time. It is used ahead: what comes
// next of the session waits the longer, so that to leave and come again gains
// nothing.
func (e *Export) leave(l *line) {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.waits > 0 {
		e.remove(l)
	}
	for l.waits > 0 {
		e.charge(l, now)
	}
}

// advance lets through what may go now.
func (e *Export) advance(now time.Duration) {
	for e.shared.wait(now) <= 0 {
		l := e.next(now)
		if l == nil {
			return
		}
		e.virtual = max(e.virtual, l.start)
		e.remove(l)
		e.charge(l, now)
		if l.waits > 0 {
			e.enter(l)
		}
	}
}

// next returns the line whose turn it is, or nil if every session that waits has
// used up its own rate.
func (e *Export) next(now time.Duration) (first *line) {
	for _, l := range e.waiting {
		if (first == nil || l.start < first.start) && l.session.own.wait(now) <= 0 {
			first = l
		}
	}
	return first
}

// charge lets the first request of a line through, and takes what it costs.
func (e *Export) charge(l *line, now time.Duration) {
	w := l.pass()
	e.shared.charge(e.shared.rates.costOf(w.request), now)
	l.session.own.charge(e.each.costOf(w.request), now)
	e.counters.count(w.request, now-w.since)
	l.session.counters.count(w.request, now-w.since)
}

func (e *Export) remove(l *line) {
	last := len(e.waiting) - 1
	for i, w := range e.waiting {
		if w == l {
			e.waiting[i] = e.waiting[last]
			e.waiting[last] = nil
			e.waiting = e.waiting[:last]
			return
		}
	}
}

// Bounds of the time after which a queue asks again. What is ahead of it may
// disappear, so it does not sleep for long.
const (
	soonest = time.Microsecond
	latest  = 10 * time.Millisecond
)

// patience estimates when it is the turn of a line: when the shared rate has served
// what goes before it, and its own rate allows it.
func (e *Export) patience(l *line, now time.Duration) time.Duration {
	ahead := cost{}
	for _, w := range e.waiting {
		if w.start < l.start {
			ahead = ahead.add(e.shared.rates.costOf(w.first().request))
		}
	}
	wait := max(e.shared.wait(now)+ahead.longer(), l.session.own.wait(now))
	return min(max(wait, soonest), latest)
}

// never is the wait of a queue in which nothing waits.
const never = time.Duration(math.MaxInt64)
