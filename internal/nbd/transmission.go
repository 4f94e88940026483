package nbd

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/spin"
)

// transmission is the transmission phase of one connection: the socket, the
// queue, and everything in between, owned by one goroutine. In steady state it
// allocates nothing and takes no lock. One turn of its loop:
//
//  1. fill    takes from the socket what has arrived       (receive.go)
//  2. parse   makes requests of it and submits them        (receive.go)
//  3. kick    starts the batch                             (once)
//  4. reap    takes finished requests and builds replies   (reply.go)
//  5. send    gives the socket all replies in one call     (reply.go)
//
// A request lives in a slot from its header to the last byte of its reply. Slots
// and bytes in flight are bounded; when either runs out, parse stops, then fill,
// then the client's socket buffer fills: a client that does not take its replies
// costs a bounded amount of memory. One that is idle costs none of it: the loop ends
// with errIdle, and is run again when there is something to do (park.go).
type transmission struct {
	conn     *conn
	limits   *Limits
	sock     socket
	bell     bell
	secure   *secure // over sock; nil without TLS
	queue    block.Queue
	shedder  block.Shedder // the queue, if it can
	info     block.Info
	follows  *Export // whose present size counts; nil if what the client was told does
	terms    terms
	draining bool // new requests are refused

	slots    slots
	underWay int                 // requests between Submit and Reap
	inFlight int64               // bytes of READs and WRITEs from admission to reply
	unkicked bool                // something was submitted since the last Kick
	finished *[64]*block.Request // nil while the connection is parked

	in       inbound
	out      outbound
	statuses statuses

	idle     spin.Spinner
	receives stall
	sends    stall
	counts   tally
	turns    uint // since the counters were published
	epoch    time.Time
	rested   time.Duration // slept without anything to do
	patient  time.Duration // rested so long, it is parked
}

// errStalled ends a connection whose client stopped in the middle.
var errStalled = errors.New("client made no progress")

// errIdle ends the loop of a client that had nothing to say for a while.
var errIdle = errors.New("client is idle")

func newTransmission(c *conn, s *session) *transmission {
	t := &transmission{
		conn:   c,
		limits: c.limits,
		sock:   s.sock,
		bell:   s.bell,
		secure: s.secure,
		queue:  s.queue,
		info:   s.info,
		terms:  s.terms,
		slots:  slots{depth: c.limits.Depth},
		epoch:  time.Now(),
	}
	if s.follow {
		t.follows = s.export
	}
	t.shedder, _ = s.queue.(block.Shedder)
	t.patient = firstRest
	t.in.window = bufferSize
	t.idle = spin.New(c.limits.Spin)
	if t.secure != nil {
		t.secure.attach(s.sock)
	}
	return t
}

// run serves the client until it disconnects (nil), leaves (io.EOF or
// io.ErrUnexpectedEOF), breaks the protocol, the server ends, or the client is idle
// (errIdle).
func (t *transmission) run() error {
	t.wake()
	for {
		progress, err := t.turn()
		if err != nil {
			return err
		}
		if t.turns++; t.turns%64 == 0 {
			t.conn.published.store(&t.counts)
		}
		if progress {
			continue
		}
		if t.done() {
			return t.in.end
		}
		if progress, err = t.spin(); progress || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if err := t.sleep(); err != nil {
			return err
		}
	}
}

// turn does what can be done without waiting, and reports whether that was
// anything.
func (t *transmission) turn() (bool, error) {
	if t.conn.stopped.Load() {
		return false, errStopped
	}
	if !t.draining && t.conn.server.draining.Load() {
		t.draining = true
		t.in.dry = false // whatever has arrived still gets its answer
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
		t.queue.Kick()
		t.unkicked = false
	}
	reaped := t.underWay > 0 && t.reap()
	sent, err := t.send()
	return filled || parsed || reaped || sent, err
}

// sending reports whether something waits for the socket to have room.
func (t *transmission) sending() bool { return !t.out.empty() || t.secure.pending() }

// done reports whether the connection has come to its end, after a turn without
// progress.
func (t *transmission) done() bool {
	if t.underWay > 0 || t.sending() {
		return false
	}
	if t.in.phase == ended {
		return true
	}
	// A request that was accepted before the server began to drain is finished.
	return t.draining && t.in.dry && t.in.phase != awaitPayload
}

// sleep waits for the socket, the queue, or the server to have something to do.
func (t *transmission) sleep() error {
	if t.underWay == 0 {
		t.queue.Reap(nil) // its turn: an idle remote device keeps its connection alive
	}
	wait, ok := t.queue.Arm()
	if !ok && t.underWay > 0 {
		return nil
	}
	if !ok {
		wait = 0 // only look at the socket
	}
	wait, err := t.bound(wait)
	if err != nil {
		return err
	}
	fds := [...]unix.PollFd{
		{Fd: -1},
		{Fd: int32(t.bell), Events: unix.POLLIN},
		{Fd: int32(t.queue.FD()), Events: unix.POLLIN},
	}
	client, bell := &fds[0], &fds[1]
	if t.hungry() {
		client.Events |= unix.POLLIN
	}
	if t.sending() {
		client.Events |= unix.POLLOUT
	}
	if client.Events != 0 { // else a hang-up would wake for nothing
		client.Fd = int32(t.sock)
	}
	t.counts[countSleeps]++
	t.counts[countCalls]++
	t.conn.published.store(&t.counts)
	t.rest(wait, sleep(fds[:], wait))

	gone := client.Revents & (unix.POLLHUP | unix.POLLERR)
	if client.Revents&unix.POLLIN|gone != 0 {
		t.in.dry = false
	}
	if client.Revents&unix.POLLOUT|gone != 0 {
		t.out.full = false
	}
	if bell.Revents != 0 {
		t.bell.silence()
		t.counts[countCalls]++
	}
	return nil
}

// bound returns how long the loop may sleep, given how long the queue lets it.
// Negative stands for any time.
func (t *transmission) bound(wait time.Duration) (time.Duration, error) {
	patience, err := t.patience()
	if err != nil {
		return 0, err
	}
	limits := [...]time.Duration{patience, -1, -1}
	if t.idling() {
		mayPark := wait < 0 || t.shedder != nil
		if mayPark && t.rested >= t.patient {
			return 0, errIdle
		}
		if mayPark {
			limits[1] = t.patient - t.rested
		}
	}
	if t.underWay == 0 && (t.in.phase == awaitMemory || t.in.phase == awaitQueue) {
		limits[2] = memoryRetry
	}
	for _, limit := range limits {
		if limit >= 0 && (wait < 0 || limit < wait) {
			wait = limit
		}
	}
	return wait, nil
}

// memoryRetry is how long the loop waits to ask again a queue that refuses a
// request although nothing is under way: the machine is out of memory.
const memoryRetry = 10 * time.Millisecond

// patience returns how long the client may still take to go on with what it
// began, negative if it began nothing.
func (t *transmission) patience() (time.Duration, error) {
	receiving, sending := t.hungry() && t.in.partial(), t.sending()
	if t.limits.Progress < 0 || !receiving && !sending {
		return -1, nil
	}
	now := time.Since(t.epoch)
	patience := t.limits.Progress
	if receiving {
		patience = min(patience, t.receives.left(now, t.in.total, t.limits.Progress))
	}
	if sending {
		patience = min(patience, t.sends.left(now, t.out.total, t.limits.Progress))
	}
	if patience <= 0 {
		return 0, fmt.Errorf("%w for %v", errStalled, t.limits.Progress)
	}
	return patience, nil
}

// stall measures how long a stream of bytes has stood still.
type stall struct {
	since time.Duration // epoch-based time at which total was first seen
	total uint64        // bytes
}

// left returns what remains of the limit if the stream stands at total now.
func (s *stall) left(now time.Duration, total uint64, limit time.Duration) time.Duration {
	if s.since == 0 || s.total != total {
		s.since, s.total = now, total
	}
	return s.since + limit - now
}

// giveBack frees a slot and what it holds.
func (t *transmission) giveBack(s *slot) {
	t.queue.Release(&s.req)
	t.statuses.takeBack(s)
	t.inFlight -= s.payload
	s.payload = 0
	s.req.Data = nil
	s.req.Err = nil
	s.why = ""
	t.slots.put(s)
}

// release gives back the memory of requests that are not under way when the
// connection ends; the queue's Close waits for the others.
func (t *transmission) release() {
	if t.in.phase == awaitPayload {
		t.queue.Release(&t.in.current.req)
	}
	for _, s := range t.out.pending() {
		if s != nil {
			t.queue.Release(&s.req)
		}
	}
	t.secure.farewell()
	t.shed()
	t.conn.published.store(&t.counts)
}

// endOfStream is what the end of the client's stream means here.
func (t *transmission) endOfStream() error {
	if t.in.partial() {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}
