package nbd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection from accept to close. Its goroutine owns everything but
// what is marked; the rest of the server only tells it to end.
type conn struct {
	server *Server
	limits *Limits
	remote string
	since  time.Time

	stopped   atomic.Bool // end at once
	published published   // counters, written by the goroutine, read by anyone

	// Guarded by Server.mu.
	export   string
	counters *exportCounters // not nil while the connection is in the export

	mu   sync.Mutex
	net  net.Conn // of the handshake; nil afterwards
	bell *bell    // of the transmission; nil before and afterwards
}

// drainGrace is the time that a client in its handshake has, when the server
// drains, to hear that it does.
const drainGrace = 500 * time.Millisecond

// errStopped is the end of a connection that the server cut off.
var errStopped = errors.New("connection cut off by the server")

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, limits: s.effectiveLimits(), net: nc, since: time.Now()}
	c.remote = nc.RemoteAddr().Network() + ":" + nc.RemoteAddr().String()
	if l := c.limits.Handshake; l > 0 {
		nc.SetDeadline(c.since.Add(l))
	}
	return c
}

// stop ends the connection at once. It may be called from any goroutine.
func (c *conn) stop() {
	c.stopped.Store(true)
	c.interrupt()
}

// interrupt makes the connection look at what changed: that it is stopped, or
// that the server drains. It may be called from any goroutine.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.bell != nil:
		c.bell.ring()
	case c.net != nil && c.stopped.Load():
		c.net.SetDeadline(time.Unix(1, 0))
	case c.net != nil:
		c.net.SetReadDeadline(time.Now().Add(drainGrace))
	}
}

// run serves the connection: handshake, then transmission.
func (c *conn) run() (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	n := negotiation{
		conn:     c.net,
		exports:  c.server.Exports,
		limits:   c.limits,
		draining: c.server.draining.Load,
		open:     c.open,
	}
	// A queue is driven by one goroutine, and the loop by one thread: see transmit.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := n.run()
	if s == nil {
		return err
	}
	defer c.close(s)
	if err != nil {
		return err
	}
	return c.transmit(s)
}

// runTransmission serves the connection without handshake.
func (c *conn) runTransmission(e *Export) (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := c.open(e)
	if err != nil {
		return err
	}
	defer c.close(s)
	return c.transmit(s)
}

// open counts the connection in at the export and opens a queue on its device.
func (c *conn) open(e *Export) (*session, error) {
	if err := c.server.enter(c, e); err != nil {
		return nil, fmt.Errorf("export %q: %w", e.Name, err)
	}
	q, err := e.Device.NewQueue(c.limits.Depth)
	if err != nil {
		c.server.leave(c)
		return nil, fmt.Errorf("export %q: open queue: %w", e.Name, err)
	}
	return &session{export: e, info: e.clientInfo(c.limits), queue: q}, nil
}

// close ends what open began.
func (c *conn) close(s *session) {
	if err := s.queue.Close(); err != nil {
		c.server.log().Warn("close queue", "client", c.remote, "export", s.export.Name, "error", err)
	}
	c.server.leave(c)
}

// transmit takes the socket from the runtime's poller and runs the loop on it.
func (c *conn) transmit(s *session) error {
	c.mu.Lock()
	sock, err := takeSocket(c.net)
	if err == nil {
		c.net.Close()
		c.net = nil
		if c.bell, err = newBell(); err != nil {
			sock.close()
		}
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	c.server.log().Debug("client entered export", "client", c.remote, "export", s.export.Name)
	t := newTransmission(c, s, sock)
	defer func() {
		c.mu.Lock()
		c.bell.close()
		c.bell = nil
		c.mu.Unlock()
		sock.close()
	}()
	return t.run()
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
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// logEnd logs why the connection ended.
func (c *conn) logEnd(err error) {
	log := c.server.log().With("client", c.remote)
	switch {
	case err == nil, errors.Is(err, errAborted), errors.Is(err, errStopped), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		log.Debug("connection ended", "reason", err)
	default:
		log.Warn("connection ended", "error", err)
	}
}
