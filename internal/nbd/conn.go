package nbd

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// conn is a connection from accept to close. Its goroutine owns everything but
// what is marked; the rest of the server only tells it to end.
type conn struct {
	server *Server
	limits *Limits
	remote string
	origin string // whom it counts for, if the server has accepted it
	since  time.Time
	chosen bool // the goroutine's: the handshake has ended with an export

	stopped  atomic.Bool  // end at once
	listener net.Listener // that accepted it; nil if none of the server's did

	// Guarded by Server.mu.
	stage    stage
	spoke    bool          // it has said its first words
	place    *list.Element // of a handshake, among those of its origin
	export   string
	counters *exportCounters // not nil while the connection is in the export

	// Counters while the connection is in the export: the pointer is guarded, what it
	// points at is written by the goroutine and read by anyone.
	published *published

	mu     sync.Mutex
	net    net.Conn // of the handshake; nil afterwards
	bell   *bell    // of the transmission; nil before and afterwards
	parked watched  // the socket of a parked connection; else nil
}

// drainGrace is the time that a client in its handshake has, when the server
// drains, to hear that it does.
const drainGrace = 500 * time.Millisecond

// longAgo is a deadline that wakes whoever waits.
var longAgo = time.Unix(1, 0)

// errStopped is the end of a connection that the server cut off.
var errStopped = errors.New("connection cut off by the server")

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, limits: s.effectiveLimits(), net: nc, since: time.Now(), remote: nameOf(nc)}
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

// interrupt makes the connection look at what changed: that it is stopped, or
// that the server drains. It may be called from any goroutine.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked != nil {
		c.parked.SetReadDeadline(longAgo)
	}
	switch {
	case c.bell != nil:
		c.bell.ring()
	case c.net != nil && c.stopped.Load():
		c.net.SetDeadline(longAgo)
	case c.net != nil:
		c.net.SetReadDeadline(time.Now().Add(drainGrace))
	}
}

// run serves the connection: handshake, then transmission.
func (c *conn) run() (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	c.mu.Lock()
	nc := c.net
	c.mu.Unlock()
	if nc == nil {
		return errStopped
	}
	n := negotiation{
		conn:     nc,
		exports:  c.server.Exports,
		limits:   c.limits,
		tls:      &c.server.TLS,
		draining: c.server.draining.Load,
		open:     c.open,
		spoke:    func() { c.server.heard(c) },
	}
	s, err := n.run()
	if s == nil {
		return err
	}
	c.chosen = true
	defer c.close(s)
	if err != nil {
		return err
	}
	return c.transmit(s)
}

// runTransmission serves the connection without handshake. It calls ready, if that is
// there, when it has all that it needs.
func (c *conn) runTransmission(e *Export, ready func()) (err error) {
	defer c.closeHandshake()
	defer c.recover(&err)
	s, err := c.open(e, nil)
	if err != nil {
		return err
	}
	defer c.close(s)
	s.follow = true
	if ready != nil {
		ready()
	}
	return c.transmit(s)
}

// open counts the connection in at the export, opens a queue on its device for the
// client, who is behind TLS if secure is there, and gets all that transmission needs:
// a client that was told of its export has it.
func (c *conn) open(e *Export, secure *secure) (*session, error) {
	if err := c.server.enter(c, e); err != nil {
		return nil, fmt.Errorf("export %q: %w", e.Name, err)
	}
	s := &session{export: e, info: e.clientInfo(c.limits), sock: -1, bell: -1}
	client, err := c.equip(s, secure)
	if err == nil {
		if s.queue, err = block.NewQueueFor(e.Device, client, c.limits.Depth); err == nil {
			return s, nil
		}
		err = fmt.Errorf("open queue: %w", err)
	}
	c.close(s)
	return nil, fmt.Errorf("export %q: %w", e.Name, err)
}

// equip gets the descriptors that the loop needs, and says who the client is.
func (c *conn) equip(s *session, secure *secure) (client string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net == nil {
		return "", errStopped
	}
	if s.sock, err = takeSocket(c.net); err == nil {
		s.bell, err = newBell()
	}
	return identity(c.net, secure), err
}

// close ends what open began.
func (c *conn) close(s *session) {
	if s.queue != nil {
		if err := s.queue.Close(); err != nil {
			c.server.log().Warn("close queue", "client", c.remote, "export", s.export.Name, "error", err)
		}
	}
	s.hangUp()
	c.server.leave(c)
}

// hangUp closes the descriptors.
func (s *session) hangUp() {
	s.sock.close()
	s.bell.close()
	s.sock, s.bell = -1, -1
}

// transmit takes the socket from the runtime's poller and serves the client on it.
func (c *conn) transmit(s *session) error {
	c.mu.Lock()
	c.bell = &s.bell
	if w, ok := c.net.(watched); ok && s.secure == nil {
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
		s.hangUp() // now: a device that hangs does not keep the client
	}()
	c.server.log().Debug("client entered export", "client", c.remote, "export", s.export.Name)
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
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// logEnd logs why the connection ended.
func (c *conn) logEnd(err error) {
	log := c.server.log().With("client", c.remote)
	switch {
	case err == nil, c.stopped.Load(), hasLeft(err), errors.Is(err, errStopped):
		log.Debug("connection ended", "reason", err)
	case !c.chosen: // anybody may do that, as often as he likes
		c.server.refusals.Warn(log, "handshake ended", "error", err)
	default:
		log.Warn("connection ended", "error", err)
	}
}

// hasLeft reports whether the end of a connection is that the client went away.
func hasLeft(err error) bool {
	for _, end := range [...]error{errAborted, io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
