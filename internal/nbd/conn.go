package nbd

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/loop"
)

// conn is a connection from accept to close. Its goroutine owns everything but
// what is marked; the rest of the server only tells it to end.
type conn struct {
	server       *Server
	limits       *Limits
	remote       string
	local        bool // a process of this host, if the server has accepted it
	since        time.Time
	exportChosen bool        // the goroutine's: the handshake has ended with an export
	id           uint64      // random
	kernel       bool        // of ServeConn, whose client is the kernel
	done         *counterSet // the goroutine's: what the client did, once it has left

	stopped  atomic.Bool  // end at once
	ending   atomic.Bool  // end when the requests in flight are answered
	active   atomic.Int64 // ns since 1970, of the last request published; 0: none
	inFlight atomic.Int32 // requests in the queue, when they were published
	listener net.Listener // that accepted it; nil if none of the server's did

	// Guarded by Server.mu.
	clientID     string          // whom it counts for, if the server has accepted it
	identity     access.Identity // of the client, once it has the export
	name         string          // the identity as text, once the status has asked
	stage        stage
	dataReceived bool          // it has sent its first bytes
	element      *list.Element // of a handshake, among those of its client
	export       string
	device       block.Device    // of the export
	counters     *exportCounters // not nil while the connection is in the export

	// Counters while the connection is in the export: the pointer is guarded,
	// what it points at is written by the goroutine and read by all.
	published *publishedCounters

	mu sync.Mutex
	// +checklocks:mu
	net net.Conn // of the handshake; nil afterwards
	// +checklocks:mu
	secure *secure // of the transmission; nil before it, and without TLS
	// +checklocks:mu
	bell   *int         // eventfd of the transmission; nil before and afterwards
	parked polledSocket // the socket of a parked connection; else nil
}

// drainGrace is the time that a client in its handshake has, when the server
// drains, to hear that it does.
const drainGrace = 500 * time.Millisecond

// expiredDeadline is a deadline in the past: it ends every wait.
var expiredDeadline = time.Unix(1, 0)

// errStopped is the end of a connection that the server cut off.
var errStopped = errors.New("connection cut off by the server")

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, limits: s.effectiveLimits(), net: nc, since: time.Now(), remote: nameOf(nc), id: rand.Uint64()}
	if l := c.limits.Handshake; l > 0 {
		nc.SetDeadline(c.since.Add(l))
	}
	return c
}

// nameOf returns how a client is called in the log.
func nameOf(nc net.Conn) string {
	return nc.RemoteAddr().Network() + ":" + nc.RemoteAddr().String()
}

// stop ends the connection at once. It may be called from any goroutine.
func (c *conn) stop() {
	c.stopped.Store(true)
	c.interrupt()
}

// draining reports whether the connection ends when the requests in flight are
// answered.
func (c *conn) draining() bool { return c.server.draining.Load() || c.ending.Load() }

// preempted ends the connection because another client takes its disk. It may
// be called from any goroutine, and again while the connection ends.
func (c *conn) preempted(by string) {
	if !c.stopped.Swap(true) {
		c.server.log().Warn("connection ended: another client preempted it", "event", "session_preempted", "client", c.remote, "by", by)
	}
	c.interrupt()
}

// interrupt makes the connection look at what changed: that it is stopped, or
// that the server drains. It may be called from any goroutine.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked != nil {
		c.parked.SetReadDeadline(expiredDeadline)
	}
	switch {
	case c.bell != nil:
		eventfd.Ring(*c.bell)
	case c.net != nil && c.stopped.Load():
		c.net.SetDeadline(expiredDeadline)
	case c.net != nil:
		c.net.SetReadDeadline(time.Now().Add(drainGrace))
	}
}

// allowAnswer lets a handshake whose time is over send an answer, unless the
// server has ended the connection.
func (c *conn) allowAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil && !c.stopped.Load() {
		c.net.SetWriteDeadline(time.Now().Add(drainGrace))
	}
}

// run serves the connection: handshake, then transmission.
func (c *conn) run() (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	s, err := c.negotiate()
	if s == nil {
		return err
	}
	c.exportChosen = true
	defer c.close(s)
	if err == nil {
		err = c.setSecure(s.secure)
	}
	if err != nil {
		return err
	}
	return c.transmit(s)
}

// negotiate does the handshake, and returns no session if that ends without an
// export. Its frame is gone in transmission: the stack of an idle client is
// small.
func (c *conn) negotiate() (*session, error) {
	c.mu.Lock()
	nc := c.net
	c.mu.Unlock()
	if nc == nil {
		return nil, errStopped
	}
	n := negotiation{
		conn:         nc,
		exports:      c.server.Exports,
		limits:       c.limits,
		tls:          &c.server.TLS,
		draining:     c.draining,
		open:         c.open,
		dataReceived: func() { c.server.handshakeActive(c) },
		identity:     kernelIdentity(nc, c.listener),
		logRefused:   c.logRefused,
		allowAnswer:  c.allowAnswer,
	}
	return n.run()
}

// runTransmission serves the connection without handshake. It calls ready, if
// that is there, when it has all that it needs.
func (c *conn) runTransmission(e *Export, ready func()) (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	s, err := c.open(granted{Export: e}, access.Identity{}) // the caller's own
	if err != nil {
		return err
	}
	defer c.close(s)
	s.followSize = true
	if ready != nil {
		ready()
	}
	return c.transmit(s)
}

// open counts the connection in at the export, opens a queue on its device for
// the client, and gets all that transmission needs: a client that was told of
// its export has it.
func (c *conn) open(e granted, i access.Identity) (*session, error) {
	if err := c.server.joinExport(c, e.Export, i); err != nil {
		return nil, fmt.Errorf("export %q: %w", e.Name, err)
	}
	s, opened := &session{export: e.Export, sock: -1, bell: -1}, false
	defer func() {
		if !opened { // an error, or a panic of the device
			c.close(s)
		}
	}()
	s.info = e.clientInfo(c.limits)
	client, err := c.openFDs(s, i)
	if err == nil && e.Reserve != nil {
		if s.reservation, err = e.Reserve(c.remote, e.readOnly, c.preempted); err != nil {
			err = fmt.Errorf("%w: %w", errReserved, err)
		} else if s.reservation.ReadOnly() {
			s.info.Features = readOnlyFeatures(s.info.Features)
		}
	}
	if err == nil {
		s.queue, err = block.NewQueueFor(e.Device, client, c.limits.Depth)
	}
	if err == nil && c.listener != nil {
		err = c.server.reserved.acquire()
	}
	if err == nil {
		opened = true
		return s, nil
	}
	return nil, fmt.Errorf("export %q: %w", e.Name, err)
}

// openFDs gets the descriptors that transmission needs, and says who the client
// is.
func (c *conn) openFDs(s *session, i access.Identity) (client string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net == nil {
		return "", errStopped
	}
	if s.sock, err = dupSocket(c.net); err == nil {
		s.bell, err = eventfd.New()
	}
	if err == nil {
		err = loop.Open()
	}
	return deviceClient(c.net, i), err
}

// close ends what open began. If the queue panics, the device may still access
// the disk, and the reservation stays.
func (c *conn) close(s *session) {
	defer func() {
		s.closeFDs()
		c.server.releaseExport(c)
	}()
	if s.queue != nil {
		if err := s.queue.Close(); err != nil {
			c.server.log().Warn("close queue", "event", "release_failed", "client", c.remote, "export", s.export.Name, "error", err)
		}
	}
	if s.reservation != nil {
		s.reservation.Release()
	}
}

// closeFDs closes the descriptors.
func (s *session) closeFDs() {
	s.sock.close()
	_ = eventfd.Close(s.bell)
	s.sock, s.bell = -1, -1
}

// transmit takes the socket from the runtime's poller and serves the client on
// it.
func (c *conn) transmit(s *session) error {
	c.mu.Lock()
	c.bell = &s.bell
	if w, ok := c.net.(polledSocket); ok && s.secure == nil {
		c.parked = w // the first thing that a client without TLS does is wait
	} else {
		c.net.Close()
	}
	c.net = nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unwatchLocked()
		c.bell = nil
		s.closeFDs() // now: a device that hangs does not keep the client
	}()
	c.logVisit("client entered export", "event", "client_entered", "client", c.remote, "identity", c.identity, "export", s.export.Name)
	return newTransmission(c, s).serve()
}

// closeHandshake closes the connection if it did not get to transmission.
func (c *conn) closeHandshake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		c.net.Close()
		c.net = nil
	}
}

// recover turns a panic, in a device most likely, into the end of this one
// connection.
func (c *conn) recover(err *error) {
	if value := recover(); value != nil {
		p := contain.Caught(value)
		c.server.panics.Add(1)
		p.Log(c.server.log(), "panic: the connection ends", "client", c.remote)
		*err = p
	}
}

// logRefused logs that a client does not get an export.
func (c *conn) logRefused(export string, client access.Identity, reason string) {
	c.logCaused(c.server.log(), "export not given", "event", "export_refused", "client", c.remote, "identity", client, "export", export, "reason", reason)
}

// logCaused logs a line that the client causes, within the rate limit of whom
// the connection counts for.
func (c *conn) logCaused(log *slog.Logger, text string, args ...any) {
	c.server.caused.Log(time.Now(), c.server.clientOf(c), log, slog.LevelWarn, text, args...)
}

// logVisit logs that the client enters or leaves its export, within a rate
// limit of its own: at INFO if the server has accepted it.
func (c *conn) logVisit(text string, args ...any) {
	level := slog.LevelInfo
	if c.listener == nil {
		level = slog.LevelDebug // the caller knows
	}
	c.server.visits.Log(time.Now(), c.server.clientOf(c), c.server.log(), level, text, args...)
}

// logLeft logs what the client did in its export.
func (c *conn) logLeft(err error) {
	n := c.done
	if n == nil {
		n = new(counterSet)
	}
	reason := "disconnected"
	switch {
	case c.stopped.Load():
		reason = "cut off"
	case c.ending.Load():
		reason = "ended by the administrator"
	case c.server.draining.Load():
		reason = "the server stops"
	case err != nil:
		reason = err.Error()
	}
	c.logVisit("client left export", "event", "client_left", "client", c.remote, "export", c.export,
		"duration", time.Since(c.since).Round(time.Millisecond), "reads", n[countReads], "writes", n[countWrites],
		"bytes_read", n[countBytesRead], "bytes_written", n[countBytesWritten], "errors", n[countErrors], "reason", reason)
}

// logEnd logs why the connection ended.
func (c *conn) logEnd(err error) {
	log := c.server.log().With("client", c.remote)
	if c.exportChosen {
		c.logLeft(err)
	}
	var logged *contain.Panic
	switch {
	case err == nil, c.stopped.Load(), clientDisconnected(err), errors.Is(err, errStopped), errors.As(err, &logged):
		log.Debug("connection ended", "event", "connection_ended", "reason", err)
	case !c.exportChosen: // unauthenticated peers can cause this
		if outOfFDs(err) {
			err = fmt.Errorf("%w: %w", errNoFDs, err)
		}
		c.server.refusals.Warn(log, "handshake ended", "event", "handshake_ended", "error", err)
	default:
		c.logCaused(log, "connection ended", "event", "connection_ended", "error", err)
	}
}

// clientDisconnected reports whether the end of a connection is that the client
// went away.
func clientDisconnected(err error) bool {
	for _, end := range [...]error{errAborted, io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
