package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/eventfd"
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
	controlReceives = 4 // a request, a heartbeat, an event's ack, a logout
	controlData     = wire.MaxControlSize - carrier.HeadSize
	controlSends    = 4
	reserveReceives = 4 // beyond the credits: heartbeat, logout, spare

	// leastTransfer is what VIA has any connection carry at a time, and more than
	// any message without payload.
	leastTransfer = 32 << 10 // bytes
)

// conn is a VIA connection and its worker. Everything below the line belongs to
// the worker.
type conn struct {
	server  *Server
	workers *sync.WaitGroup // of the Serve that accepted it
	log     *slog.Logger
	halt    atomic.Int32 // stopDrain or stopNow
	look    atomic.Bool  // something of the session changed

	wakeMu sync.Mutex
	wake   int // eventfd that ends a sleep; -1 without; guarded by wakeMu for others than the worker

	published publishedStats
	// ────────
	stats    ConnStats
	gone     WindowStats // of queues that are closed
	watch    stopwatch
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
	modes    wire.DataModes
	features wire.Features

	base        uint16 // first slot
	requests    []request
	busy        int       // requests not free
	handles     []*handle // by export handle; nil where not in use
	queues      []*exportQueue
	awaitMemory fifo // requests that need pool memory
	awaitSends  fifo // requests that need sends

	owesBeat bool // a heartbeat is not answered
	holding  int  // requests that hold their range of a disk
	moved    bool // one has let go since the last beat
	heard    bool // since the last beat
	missed   int  // beats without a word, or without an end of what is held
	nextBeat time.Time
	telling  bool   // an event of a size has no ack yet
	events   uint32 // told
	failure  error  // why the connection ends
	leaving  bool   // logged out or refused: ends when the answer is out
	parting  bool   // logged out, answered when the session is alone
	partID   uint32
	done     [64]via.Completion
	reaped   [64]*block.Request
	polls    []unix.PollFd
	scratch  []byte // a control message in one piece
}

func newConn(s *Server, workers *sync.WaitGroup, peer string) *conn {
	return &conn{server: s, workers: workers, log: s.cfg.Log.With("peer", peer), wake: -1, idle: spin.New(s.cfg.Spin)}
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
	c.rouse()
}

// nudge has the worker look at its session again. It may be called from anywhere.
func (c *conn) nudge() {
	c.look.Store(true)
	c.rouse()
}

// rouse ends a sleep of the worker.
func (c *conn) rouse() {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.wake >= 0 {
		eventfd.Ring(c.wake)
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
		_ = r.Reject() // unless it was answered, and then the requester is gone
		c.server.refusals.Warn(c.log, "connection not accepted", "error", err)
		c.release()
		return
	}
	c.log.Debug("connection accepted")
	debug.SetPanicOnFault(true)
	c.guard(c.loop)
	known := c.session != nil
	c.release()
	switch {
	case c.failure == nil:
		c.log.Debug("connection ended")
	case !known: // anybody may do that, as often as he likes
		c.server.refusals.Warn(c.log, "connection ended", "error", c.failure)
	default:
		c.log.Warn("connection ended", "error", c.failure)
	}
}

// accept sets the connection up with memory for control messages only.
func (c *conn) accept(ctx context.Context, r *via.ConnRequest) error {
	cfg := &c.server.cfg
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	c.setWake(fd)
	attrs := r.Attributes()
	if attrs.Reliability == via.UnreliableDelivery {
		return errors.New("a connection that may lose messages")
	}
	if attrs.MaxTransferSize < leastTransfer {
		return fmt.Errorf("a connection that carries %d bytes at a time, %d are the least", attrs.MaxTransferSize, leastTransfer)
	}
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
		return err
	}
	c.scratch = make([]byte, wire.MaxControlSize)
	ctx, cancel := context.WithTimeout(ctx, loginPatience)
	defer cancel()
	return c.carrier.Accept(ctx, r)
}

// release ends the connection and gives everything back, in the order that
// keeps memory until nobody uses it: the peer first, then the backends. The
// session goes on without the connection when nothing of it can touch a disk.
func (c *conn) release() {
	if c.session != nil && c.role == wire.RoleControl {
		c.session.end()
	}
	if c.carrier != nil {
		c.carrier.Disconnect()
		c.publish()
	}
	var errs []error
	for i := range c.requests {
		c.letGo(&c.requests[i])
		c.requests[i].lease.Release()
	}
	for _, q := range c.queues {
		c.retire(q)
	}
	if c.carrier != nil {
		errs = append(errs, c.server.mappings.withdraw(c.carrier.Tag()))
	}
	for _, q := range c.queues {
		errs = append(errs, q.close())
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
	if c.session != nil {
		for _, h := range c.handles {
			if h != nil {
				c.session.unuse(h.opened, c.server.exports)
			}
		}
		c.server.sessions.leave(c, c.server.exports)
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
