package nbd

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/spin"
)

// transmission is the transmission phase of one connection: the socket, the
// queue, and everything in between. A loop drives it, with others. In steady
// state it allocates nothing and takes no lock. One iteration of it:
//
//  1. fill    takes from the socket what has arrived       (receive.go)
//  2. parse   makes requests of it and submits them        (receive.go)
//  3. kick    starts the batch                             (once)
//  4. reap    takes finished requests and builds replies   (reply.go)
//  5. send    gives the socket all replies in one call     (reply.go)
//
// A request lives in a entry from its header to the last byte of its reply.
// Slots and bytes in flight are bounded; when either runs out, parse stops,
// then fill, then the client's socket buffer fills: a client that does not take
// its replies costs a bounded amount of memory. One that is idle costs none of
// it: the loop has it no longer, until there is something to do (idle.go).
type transmission struct {
	conn         *conn
	limits       *Limits
	sock         socket
	bell         int     // an eventfd
	secure       *secure // over sock; nil without TLS
	queue        block.Queue
	reservation  Reservation        // nil: the disk has no other users
	idleReleaser block.IdleReleaser // the queue, if it can
	info         block.Info
	sizeSource   *Export // whose present size counts; nil if what the client was told does
	terms        terms
	draining     bool // the server ends: only what has arrived is executed

	requests        requestTable
	inQueue         int                 // requests between Submit and Reap
	payloadInFlight int64               // bytes of READs and WRITEs from admission to reply
	unkicked        bool                // something was submitted since the last Kick
	finished        *[64]*block.Request // nil while the connection is parked

	in       inbound
	out      outbound
	statuses statusPool

	wakers     wakers
	hangingUp  *hangUp // nil: not yet
	outcome    error   // of the last visit
	spinner    spin.Spinner
	receives   stall
	sends      stall
	counts     counterSet
	timing     timing
	age        requestAge
	iterations uint // since the counters were published
	epoch      time.Time
	idleTime   time.Duration // slept without anything to do
	parkDelay  time.Duration // idle for so long, it is parked
}

// errStalled ends a connection whose client stopped in the middle.
var errStalled = errors.New("client made no progress")

// errIdle is the outcome of a visit to a client that had nothing to say for a
// while.
var errIdle = errors.New("client is idle")

func newTransmission(c *conn, s *session) *transmission {
	t := &transmission{
		conn:        c,
		limits:      c.limits,
		sock:        s.sock,
		bell:        s.bell,
		secure:      s.secure,
		queue:       s.queue,
		reservation: s.reservation,
		info:        s.info,
		terms:       s.terms,
		requests:    requestTable{depth: c.limits.Depth},
		epoch:       time.Now(),
		wakers:      newWakers(s),
	}
	if s.followSize {
		t.sizeSource = s.export
	}
	t.timing.set = &c.counters.latency
	t.idleReleaser, _ = s.queue.(block.IdleReleaser)
	t.parkDelay = minParkDelay
	t.in.receiveLimit = bufferSize
	t.spinner = spin.New(c.limits.BusyPoll)
	if t.secure != nil {
		t.secure.attach(s.sock)
	}
	return t
}

// iterate does what can be done without waiting, and reports whether that was
// anything.
func (t *transmission) iterate() (bool, error) {
	if t.conn.stopped.Load() {
		return false, errStopped
	}
	if !t.draining && t.conn.draining() {
		t.draining = true
		t.in.drain(t.limits.Depth)
	}
	filled, err := t.fill()
	if err != nil {
		return false, err
	}
	parsed, err := t.parse()
	if err != nil {
		return false, err
	}
	if t.unkicked {
		loop.MayBlock()
		t.queue.Kick()
		t.unkicked = false
	}
	reaped := t.inQueue > 0 && t.reap()
	if t.draining {
		t.in.closeDrained(t.terms.replyMode.requestSize())
	}
	sent, err := t.send()
	t.timing.Expire()
	return filled || parsed || reaped || sent, err
}

// publish makes the counters visible, the requests in flight, and that the
// client was active if a request was counted since the last time.
func (t *transmission) publish() {
	if n := int32(t.inQueue); t.conn.inFlight.Load() != n {
		t.conn.inFlight.Store(n)
	}
	if !t.conn.published.store(&t.counts) {
		return
	}
	now := time.Now()
	if t.timing.recorder != nil {
		now = t.epoch.Add(t.timing.Now()) // without another reading
	}
	t.conn.active.Store(now.UnixNano())
}

// sending reports whether something waits for the socket to have room.
func (t *transmission) sending() bool { return !t.out.empty() || t.secure.pending() }

// done reports whether the connection has come to its end, after an iteration
// without progress.
func (t *transmission) done() bool {
	if t.inQueue > 0 || t.sending() {
		return false
	}
	return t.in.phase == ended || t.in.closed
}

// bound returns how long the connection may sleep, given how long the queue
// lets it. Negative stands for any time.
func (t *transmission) bound(wait time.Duration) (time.Duration, error) {
	timeout, err := t.progressTimeout()
	if err != nil {
		return 0, err
	}
	limits := [...]time.Duration{timeout, -1, -1}
	if t.inQueue > 0 && t.reservation != nil {
		limits[1] = t.age.interval()
	}
	if t.quiescent() {
		mayPark := wait < 0 || t.idleReleaser != nil
		if mayPark && t.idleTime >= t.parkDelay {
			return 0, errIdle
		}
		if mayPark {
			limits[1] = t.parkDelay - t.idleTime
		}
	}
	if t.inQueue == 0 && (t.in.phase == awaitMemory || t.in.phase == awaitQueue) {
		limits[2] = memoryRetry
	}
	for _, limit := range limits {
		if limit >= 0 && (wait < 0 || limit < wait) {
			wait = limit
		}
	}
	return wait, nil
}

// memoryRetry is how long the client waits to ask again a queue that refuses a
// request although nothing is in flight: the machine is out of memory.
const memoryRetry = 10 * time.Millisecond

// progressTimeout returns how long the client may still take to go on with what
// it began, negative if it began nothing.
func (t *transmission) progressTimeout() (time.Duration, error) {
	receiving, sending := t.needsInput() && t.in.partial(), t.sending()
	if t.limits.Progress < 0 || !receiving && !sending {
		return -1, nil
	}
	now := time.Since(t.epoch)
	timeout := t.limits.Progress
	if receiving {
		timeout = min(timeout, t.receives.remaining(now, t.in.total, t.limits.Progress))
	}
	if sending {
		timeout = min(timeout, t.sends.remaining(now, t.out.total, t.limits.Progress))
	}
	if timeout <= 0 {
		return 0, fmt.Errorf("%w for %v", errStalled, t.limits.Progress)
	}
	return timeout, nil
}

// stall measures how long a stream of bytes has stood still.
type stall struct {
	since time.Duration // epoch-based time at which total was first seen
	total uint64        // bytes
}

// remaining returns what remains of the limit if the stream stands at total
// now.
func (s *stall) remaining(now time.Duration, total uint64, limit time.Duration) time.Duration {
	if s.since == 0 || s.total != total {
		s.since, s.total = now, total
	}
	return s.since + limit - now
}

// releaseEntry frees a entry and what it holds.
func (t *transmission) releaseEntry(s *entry) {
	t.queue.Release(&s.req)
	t.statuses.release(s)
	t.payloadInFlight -= s.payload
	s.payload = 0
	s.req.Data = nil
	s.req.Err = nil
	s.why = ""
	t.requests.release(s)
}

// releaseAll gives back the memory of requests that are not in flight when the
// connection ends; the queue's Close waits for the others.
func (t *transmission) releaseAll() {
	if t.in.phase == awaitPayload {
		t.queue.Release(&t.in.current.req)
	}
	for _, s := range t.out.pending() {
		if s != nil {
			t.queue.Release(&s.req)
		}
	}
	t.secure.closeNotify()
	t.releaseIdle()
	t.publish()
}

// endOfStream is what the end of the client's stream means here.
func (t *transmission) endOfStream() error {
	if t.in.partial() {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}
