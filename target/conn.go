package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/spin"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// How a worker is told to stop.
const (
	stopDrain = 1 // finish what is under way
	stopNow   = 2
)

// Receives that a connection has before it logged in, and what each holds beyond
// its head: any control message.
const (
	controlReceives = 2
	controlData     = wire.MaxControlSize - carrier.HeadSize
	controlSends    = 4
	reserveReceives = 4 // beyond the credits: heartbeat, abort, event, spare
)

// conn is a VIA connection and its worker. Everything below the line belongs to
// the worker.
type conn struct {
	server *Server
	log    *slog.Logger
	halt   atomic.Int32 // stopDrain or stopNow

	wakeMu sync.Mutex
	wake   int // eventfd that ends a sleep; -1 without; guarded by wakeMu for others than the worker

	published publishedStats
	// ────────
	stats    ConnStats
	idle     spin.Spinner
	turns    uint32
	carrier  *carrier.Carrier
	session  *session
	role     wire.Role
	index    uint16
	epoch    uint32
	pool     *regcache.Pool
	inline   uint32
	maxIO    uint32
	features wire.Features

	base        uint16 // first slot
	requests    []request
	busy        int // requests not free
	queues      []*exportQueue
	awaitMemory fifo // requests that need pool memory
	awaitSends  fifo // requests that need sends

	heard    bool // since the last beat
	missed   int  // beats without a word
	nextBeat time.Time
	failure  error // why the connection ends
	leaving  bool  // logged out
	done     [64]via.Completion
	reaped   [64]*block.Request
	polls    []unix.PollFd
	scratch  []byte // a control message in one piece
}

// exportQueue is this connection's queue of an open export.
type exportQueue struct {
	opened *opened
	queue  block.Queue
	direct *via.Memory // the disk itself, if it is memory; else nil
	active int         // requests submitted
}

func newConn(s *Server, peer string) *conn {
	return &conn{server: s, log: s.cfg.Log.With("peer", peer), wake: -1, idle: spin.New(s.cfg.Spin)}
}

// stop tells the worker to stop. It may be called from anywhere, more than once.
func (c *conn) stop(how int32) {
	for {
		old := c.halt.Load()
		if old >= how {
			return
		}
		if c.halt.CompareAndSwap(old, how) {
			break
		}
	}
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.wake >= 0 {
		signal(c.wake)
	}
}

// setWake gives stop an eventfd to signal, or takes it away.
func (c *conn) setWake(fd int) (old int) {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	old, c.wake = c.wake, fd
	return old
}

// routineServe is the worker: it accepts the connection, serves it, and releases
// everything.
func (c *conn) routineServe(ctx context.Context, r *via.ConnRequest) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer c.server.gone(c)
	if err := c.accept(ctx, r); err != nil {
		c.log.Warn("connection not accepted", "error", err)
		c.release()
		return
	}
	c.log.Debug("connection accepted")
	c.loop()
	c.release()
	if c.failure != nil {
		c.log.Warn("connection ended", "error", c.failure)
	} else {
		c.log.Debug("connection ended")
	}
}

// accept sets the connection up with memory for control messages only.
func (c *conn) accept(ctx context.Context, r *via.ConnRequest) error {
	cfg := &c.server.cfg
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = r.Reject()
		return fmt.Errorf("create eventfd: %w", err)
	}
	c.setWake(fd)
	attrs := r.Attributes()
	attrs.EnableRdmaWrite, attrs.EnableRdmaRead = false, false
	c.carrier, err = carrier.New(cfg.NIC, carrier.Config{
		Attributes: attrs,
		SendDepth:  cfg.Depth + controlSends + wire.MaxSegments,
		RecvDepth:  cfg.Depth + controlReceives + reserveReceives,
	})
	if err == nil {
		err = c.carrier.AddReceives(controlReceives, controlData)
	}
	if err == nil {
		err = c.carrier.AddSends(controlSends, wire.MaxControlSize)
	}
	if err != nil {
		_ = r.Reject()
		return err
	}
	c.scratch = make([]byte, wire.MaxControlSize)
	ctx, cancel := context.WithTimeout(ctx, loginPatience)
	defer cancel()
	return c.carrier.Accept(ctx, r)
}

// release ends the connection and gives everything back, in the order that
// keeps memory until nobody uses it: the peer first, then the backends.
func (c *conn) release() {
	if c.carrier != nil {
		c.carrier.Disconnect()
		c.publish()
	}
	c.server.sessions.leave(c, c.server.exports)
	var errs []error
	for _, q := range c.queues {
		if q == nil {
			continue
		}
		errs = append(errs, q.queue.Close())
		if q.direct != nil {
			errs = append(errs, q.direct.Deregister())
		}
	}
	for i := range c.requests {
		c.releaseMemory(&c.requests[i])
	}
	if c.pool != nil {
		errs = append(errs, c.pool.Close())
	}
	if c.carrier != nil {
		errs = append(errs, c.carrier.Close())
	}
	if fd := c.setWake(-1); fd >= 0 {
		_ = unix.Close(fd)
	}
	if err := errors.Join(errs...); err != nil {
		c.log.Error("connection not released", "error", err)
	}
}

// fail notes why the connection ends; the loop leaves at its next turn.
func (c *conn) fail(err error) {
	if c.failure == nil {
		c.failure = err
	}
}

// loop serves the connection until it ends.
func (c *conn) loop() {
	now := time.Now()
	c.nextBeat = now.Add(loginPatience)
	for !c.finished() {
		if c.turn() {
			continue
		}
		if c.spin() {
			continue
		}
		c.sleep()
	}
}

// finished reports whether the worker is to end.
func (c *conn) finished() bool {
	halt := c.halt.Load()
	switch {
	case c.failure != nil || halt == stopNow:
		return true
	case !c.carrier.Connected():
		if c.busy > 0 || !c.leaving {
			c.fail(errPeerLost)
		}
		return true
	case c.leaving || halt == stopDrain:
		return c.busy == 0 && c.carrier.FreeSends() == c.sends()
	}
	return false
}

var errPeerLost = errors.New("the initiator is gone")

// sends returns how many sends the connection has.
func (c *conn) sends() int {
	if c.role == wire.RoleIO {
		return controlSends + len(c.requests) + wire.MaxSegments
	}
	return controlSends
}

// turn does everything there is to do, in the order in which a request travels,
// and rings one doorbell. It reports whether there was anything.
func (c *conn) turn() bool {
	if c.turns++; c.turns%publishTurns == 0 {
		c.publish()
	}
	n := c.carrier.Poll(c.done[:])
	for i := range c.done[:n] {
		c.completion(&c.done[i])
	}
	worked := n > 0
	for _, q := range c.queues {
		if q != nil && q.active > 0 && c.reap(q) {
			worked = true
		}
	}
	if worked {
		c.retry()
		c.carrier.Doorbell()
	}
	return worked
}

// completion handles what the VI finished.
func (c *conn) completion(e *via.Completion) {
	switch {
	case e.Status.Failed():
		if e.Status&via.StatusFlushed == 0 {
			c.fail(fmt.Errorf("transfer failed: %v", e.Status))
		}
	case e.Recv:
		c.heard = true
		c.message(e)
	default:
		c.sent(c.carrier.Sent(e))
	}
}

// spin looks for work for a short time before a sleep, if that has paid lately.
func (c *conn) spin() bool {
	if !c.idle.Start() {
		return false
	}
	c.stats.Spins++
	for c.idle.Again() {
		if c.turn() {
			c.stats.SpinsPaid++
			c.idle.Paid()
			return true
		}
	}
	return false
}

// sleep waits for the VI, a backend, a stop, or the next beat.
func (c *conn) sleep() {
	c.publish()
	wait := time.Until(c.nextBeat)
	if wait <= 0 {
		c.beat()
		return
	}
	if !c.carrier.Arm() {
		return
	}
	c.polls = append(c.polls[:0], unix.PollFd{Fd: int32(c.wake), Events: unix.POLLIN}, unix.PollFd{Fd: int32(c.carrier.FD()), Events: unix.POLLIN})
	for _, q := range c.queues {
		if q == nil {
			continue
		}
		d, ok := q.queue.Arm()
		if !ok {
			return
		}
		if d >= 0 && d < wait {
			wait = d
		}
		if fd := q.queue.FD(); fd >= 0 {
			c.polls = append(c.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	if c.halt.Load() != 0 && c.finished() {
		return
	}
	c.stats.Sleeps++
	timeout := unix.NsecToTimespec(int64(wait))
	if _, err := unix.Ppoll(c.polls, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		c.fail(fmt.Errorf("wait for work: %w", err))
	}
	if c.polls[0].Revents != 0 {
		drainSignal(c.wake)
	}
	for _, q := range c.queues {
		if q != nil && q.active == 0 {
			q.queue.Reap(c.reaped[:]) // its turn; nothing is under way
		}
	}
}

// beat counts the peer's silence. A peer that is not logged in after the first
// beat, or silent for several, is dead.
func (c *conn) beat() {
	if c.role == 0 {
		c.fail(errors.New("no login arrived in time"))
		return
	}
	if c.heard {
		c.missed = 0
	} else {
		c.missed++
	}
	c.heard = false
	c.nextBeat = time.Now().Add(c.server.cfg.Heartbeat)
	if c.missed >= missedBeats {
		c.fail(fmt.Errorf("the initiator was silent for %d heartbeats of %v", c.missed, c.server.cfg.Heartbeat))
	}
}
