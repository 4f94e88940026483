package limit

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
)

// Export is a disk behind limits. It is safe for concurrent use.
//
// Start-time fair queueing chooses the next request: each session has a virtual
// time that advances by the cost of its requests, and the waiting request with
// the least start time is admitted first. Every queue of a session competes
// with one request, so that neither a deep queue nor many queues gain anything,
// and sessions with a backlog share the rate equally. The next request of the
// queue competes at once, without the queue's owner, which may sleep longer
// than a request takes: an owner that wakes late finds all requests that were
// admitted meanwhile. A session that is idle for less than a burst keeps its
// place.
type Export struct {
	device block.Device
	clock  func() time.Duration

	mu sync.Mutex
	// +checklocks:mu
	shared bucket
	// +checklocks:mu
	each Rates
	// +checklocks:mu
	virtual time.Duration // start of the last admitted request
	// +checklocks:mu
	competing []*backlog // not sorted: there are as many as busy queues
	// +checklocks:mu
	clients map[string]*Session

	// +checklocks:mu
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

// Session returns the disk for a client without a name. It holds memory only:
// an unused session needs no close.
func (e *Export) Session() *Session {
	return &Session{export: e}
}

// SetRates replaces the rates. They hold for the next request of each client,
// whose past use is kept. An error changes nothing.
func (e *Export) SetRates(shared, each Rates) error {
	publish, err := e.PrepareRates(shared, each)
	if err == nil {
		publish()
	}
	return err
}

// PrepareRates checks rates as SetRates does and changes nothing. The function
// that it returns replaces the rates by them, and cannot fail.
func (e *Export) PrepareRates(shared, each Rates) (publish func(), err error) {
	if err := errors.Join(shared.Validate(), each.Validate()); err != nil {
		return nil, err
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.shared.rates, e.each = shared, each
	}, nil
}

// bucketOf returns the bucket of a session at the present rates.
//
// +checklocks:e.mu
func (e *Export) bucketOf(s *Session) *bucket {
	s.bucket.rates = e.each
	return &s.bucket
}

// Device returns the disk without limits.
func (e *Export) Device() block.Device { return e.device }

// Close closes the disk.
func (e *Export) Close() error { return e.device.Close() }

// Session is the disk as one client sees it.
type Session struct {
	export *Export

	// Guarded by the export's lock.
	bucket   bucket
	virtual  time.Duration // when its next request starts
	queues   int           // open, or about to be
	counters Counters
}

// Info implements [block.Device].
func (s *Session) Info() block.Info { return s.export.device.Info() }

// Durability implements [block.DurabilityReporter].
func (s *Session) Durability() block.Durability { return block.DurabilityOf(s.export.device) }

// Identity implements [block.Identified].
func (s *Session) Identity() block.Identity { return block.IdentityOf(s.export.device) }

// Close implements [block.Device]. The disk stays open.
func (s *Session) Close() error { return nil }

// enqueue adds a request to a backlog, whose ring has room.
func (e *Export) enqueue(l *backlog, r *block.Request) {
	defer contain.Shared()
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enqueueLocked(l, r, now)
}

// +checklocks:e.mu
func (e *Export) enqueueLocked(l *backlog, r *block.Request, now time.Duration) {
	l.push(waiter{r, now})
	if l.waiting == 1 {
		e.compete(l)
	}
}

// enqueueAndPass is enqueue and pass for the only request of a backlog.
func (e *Export) enqueueAndPass(l *backlog, r *block.Request, dst []*block.Request) (n int, wait time.Duration) {
	defer contain.Shared()
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enqueueLocked(l, r, now)
	return e.passLocked(l, dst, now)
}

// pass runs one scheduler pass: it admits requests of all backlogs, moves those
// admitted of this one to dst and returns their number. If requests of this
// backlog still wait, it returns the delay until the next pass.
func (e *Export) pass(l *backlog, dst []*block.Request) (n int, wait time.Duration) {
	defer contain.Shared()
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.passLocked(l, dst, now)
}

// +checklocks:e.mu
func (e *Export) passLocked(l *backlog, dst []*block.Request, now time.Duration) (n int, wait time.Duration) {
	e.admitReady(now)
	n = l.popAdmitted(dst)
	if l.waiting == 0 {
		return n, never
	}
	return n, e.retryDelay(l, now)
}

// compete lets the first waiting request of a backlog compete.
//
// +checklocks:e.mu
func (e *Export) compete(l *backlog) {
	s := l.session
	l.start = max(e.virtual-e.shared.burst(), s.virtual)
	s.virtual = l.start + e.shared.rates.costOf(l.first().request).longer()
	e.competing = append(e.competing, l)
}

// discard empties a backlog and returns its requests. Those that wait are not
// charged; those that are admitted and not with the disk have been.
func (e *Export) discard(l *backlog) []*block.Request {
	defer contain.Shared()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.waiting > 0 {
		e.remove(l)
		next := l.start + e.shared.rates.costOf(l.first().request).longer()
		if l.session.virtual == next {
			l.session.virtual = l.start
		}
	}
	l.admitted, l.waiting = l.admitted+l.waiting, 0
	dropped := make([]*block.Request, l.admitted)
	l.popAdmitted(dropped)
	return dropped
}

// admitReady admits the requests that the rates allow now.
//
// +checklocks:e.mu
func (e *Export) admitReady(now time.Duration) {
	for e.shared.wait(now) <= 0 {
		l := e.next(now)
		if l == nil {
			return
		}
		e.virtual = max(e.virtual, l.start)
		e.remove(l)
		e.admit(l, now)
		if l.waiting > 0 {
			e.compete(l)
		}
	}
}

// next returns the backlog to admit from, or nil if every waiting session has
// used up its own rate.
//
// +checklocks:e.mu
func (e *Export) next(now time.Duration) (first *backlog) {
	for _, l := range e.competing {
		if (first == nil || l.start < first.start) && e.bucketOf(l.session).wait(now) <= 0 {
			first = l
		}
	}
	return first
}

// admit admits the first request of a backlog and charges its cost.
//
// +checklocks:e.mu
func (e *Export) admit(l *backlog, now time.Duration) {
	w := l.admitFirst()
	e.shared.charge(e.shared.rates.costOf(w.request), now)
	l.session.bucket.charge(e.each.costOf(w.request), now)
	e.counters.count(w.request, now-w.since)
	l.session.counters.count(w.request, now-w.since)
}

// +checklocks:e.mu
func (e *Export) remove(l *backlog) {
	last := len(e.competing) - 1
	for i, w := range e.competing {
		if w == l {
			e.competing[i] = e.competing[last]
			e.competing[last] = nil
			e.competing = e.competing[:last]
			return
		}
	}
}

// Bounds of the time after which a queue asks again. Requests ahead of it may
// disappear, so it does not sleep for long.
const (
	soonest = time.Microsecond
	latest  = 10 * time.Millisecond
)

// retryDelay estimates when a backlog is admitted next: when the shared rate
// has served the requests ahead of it, and its own rate allows it.
//
// +checklocks:e.mu
func (e *Export) retryDelay(l *backlog, now time.Duration) time.Duration {
	ahead := cost{}
	for _, w := range e.competing {
		if w.start < l.start {
			ahead = ahead.add(e.shared.rates.costOf(w.first().request))
		}
	}
	wait := max(e.shared.wait(now)+ahead.longer(), e.bucketOf(l.session).wait(now))
	return min(max(wait, soonest), latest)
}

// never is the wait of a queue in which nothing waits.
const never = time.Duration(math.MaxInt64)
