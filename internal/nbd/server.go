package nbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/ratelog"
)

// Server serves exports to NBD clients. Its exported fields are set before the
// first method is called and not changed afterwards; its methods are safe for
// concurrent use.
type Server struct {
	Exports Exports // what is served; may be nil if only ServeConn is used
	TLS     TLS     // of accepted connections
	// +checklocks:mu
	Limits Limits       // what clients may take
	Log    *slog.Logger // nil: no log. Nothing is logged per request

	draining atomic.Bool
	refusals ratelog.Log
	caused   ratelog.Peers // by clients that chose an export
	visits   ratelog.Peers // of clients
	panics   atomic.Uint64 // of connections
	reserved reservedFD    // while there is a listener

	mu sync.Mutex
	// +checklocks:mu
	admission admission
	// +checklocks:mu
	limits *Limits // with defaults, once used
	// +checklocks:mu
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	// +checklocks:mu
	exports map[string]*exportCounters
	// +checklocks:mu
	forgotten counterSet    // of exports that are none any more
	idle      chan struct{} // closed when a drained server has no connection left
	// +checklocks:mu
	accepted uint64
	// +checklocks:mu
	refused uint64
	// +checklocks:mu
	dropped uint64
	// +checklocks:mu
	ended []string // IDs of clients; see EndClient
}

// errDraining is why a client is refused while the server drains.
var errDraining = errors.New("server is shutting down")

// Serve accepts connections from l and serves them until ctx ends, l fails, or
// the server is drained, and returns when all its connections have ended. It
// closes l. Several listeners may be served at a time.
//
// The end of ctx cuts connections off at once and is returned as its cause;
// after [Server.Drain] the result is nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	if !s.addListener(l) {
		return fmt.Errorf("serve %s: %w", l.Addr(), errDraining)
	}
	defer s.removeListener(l)
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		s.stopAll(l)
	})
	defer stop()

	var connections sync.WaitGroup
	err := s.accept(ctx, l, &connections)
	connections.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.draining.Load():
		return nil
	}
	return fmt.Errorf("accept on %s: %w", l.Addr(), err)
}

// accept starts a goroutine for every connection until the listener fails.
func (s *Server) accept(ctx context.Context, l net.Listener, connections *sync.WaitGroup) error {
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		_ = s.reserved.acquire() // without it shedOnEMFILE waits
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			if c := s.admitConn(l, nc); c != nil {
				if ctx.Err() != nil {
					c.stop() // stopAll may not have seen it
				}
				connections.Go(func() { s.serve(c) })
			}
		case ctx.Err() != nil, s.draining.Load(), errors.Is(err, net.ErrClosed):
			return err
		case outOfFDs(err) && s.shedOnEMFILE(l):
		default:
			// Out of memory, or a client gone before it was accepted.
			s.log().Warn("accept", "event", "accept_failed", "listener", l.Addr(), "error", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// admitConn counts an accepted connection in, or closes it and returns nil. It
// waits for the end of the handshake that makes room for it, so that there
// never are many more than the limit.
func (s *Server) admitConn(l net.Listener, nc net.Conn) *conn {
	c := newConn(s, nc)
	c.listener = l
	c.clientID, c.local = clientIDOf(nc), isLocal(nc)
	if err := s.addConn(c, true); err != nil {
		nc.Close()
		s.refusals.Warn(s.log(), "connection refused", "event", "connection_refused", "client", c.remote, "error", err)
		return nil
	}
	return c
}

// serve drives one accepted connection from handshake to end.
func (s *Server) serve(c *conn) {
	defer s.removeConn(c)
	c.logEnd(c.run())
}

// stopAll cuts off the connections that l accepted.
func (s *Server) stopAll(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.listener == l {
			c.stop()
		}
	}
}

// ServeConn serves the transmission phase alone on conn, with simple replies,
// to a client that knows what it talks to: the kernel at the other end of a
// socket pair. It takes conn, a TCP or UNIX stream socket, and returns when the
// connection has ended and its requests are over: nil after the client
// disconnected in peace. It calls ready, unless that is nil, when the device's
// queue is open and it can serve requests. A disk that has grown takes requests
// up to its present end.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn, export *Export, ready func()) error {
	if err := export.validate(); err != nil {
		conn.Close()
		return fmt.Errorf("export %q: %w", export.Name, err)
	}
	c := newConn(s, conn)
	c.kernel = true
	if err := s.addConn(c, false); err != nil {
		conn.Close()
		return fmt.Errorf("serve export %q: %w", export.Name, err)
	}
	defer s.removeConn(c)
	defer context.AfterFunc(ctx, c.stop)()
	err := c.runTransmission(export, ready)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("serve export %q: %w", export.Name, err)
	}
	return nil
}

// ServeOne serves one connection that the caller accepted, from the handshake
// on. It takes conn and returns when the connection has ended: nil after the
// client left, in peace or not, and after [Server.Drain].
func (s *Server) ServeOne(ctx context.Context, conn net.Conn) error {
	c := newConn(s, conn)
	if err := s.addConn(c, false); err != nil {
		conn.Close()
		return fmt.Errorf("serve %s: %w", c.remote, err)
	}
	defer s.removeConn(c)
	defer context.AfterFunc(ctx, c.stop)()
	err := c.run()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil, clientDisconnected(err), s.draining.Load():
		return nil
	}
	return fmt.Errorf("serve %s: %w", c.remote, err)
}

// Drain ends the server in peace: it closes the listeners, refuses options and
// new requests with the protocol's errors for a shutdown, finishes what is in
// flight, delivers the replies and closes. If ctx ends before that is done, the
// connections left are cut off and Drain returns the cause.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining.Swap(true) {
		s.idle = make(chan struct{})
		s.checkIdleLocked()
	}
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.interrupt()
	}
	idle := s.idle
	s.mu.Unlock()

	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.stop()
	}
	s.mu.Unlock()
	return fmt.Errorf("drain: %w", context.Cause(ctx))
}

// addListener makes Drain close l. It reports false on a drained server.
func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return false
	}
	if s.listeners == nil {
		s.listeners = make(map[net.Listener]struct{})
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	last := len(s.listeners) == 0
	s.mu.Unlock()
	if last {
		s.reserved.release()
	}
}

// addConn counts c in, or says why it is refused. Only accepted connections are
// limited: those of ServeConn are the caller's own.
func (s *Server) addConn(c *conn, accepted bool) error {
	s.mu.Lock()
	if s.draining.Load() {
		s.refused++
		s.mu.Unlock()
		return errDraining
	}
	if s.conns == nil {
		s.conns = make(map[*conn]struct{})
	}
	s.accepted++
	s.conns[c] = struct{}{}
	var victim *conn
	if accepted {
		s.admission.limits = c.limits
		if victim = s.admission.begin(c); victim != nil {
			s.dropped++
		}
	}
	s.mu.Unlock()
	if victim != nil {
		s.evict(victim, errEvicted)
	}
	return nil
}

// clientOf returns whom a connection counts for.
func (s *Server) clientOf(c *conn) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.clientID
}

// evict closes a connection whose handshake was dropped, for a reason, and
// waits until its file descriptor is free.
func (s *Server) evict(c *conn, why error) {
	c.stop()
	c.closeHandshake()
	s.refusals.Warn(s.log(), "handshake dropped", "event", "handshake_dropped", "client", c.remote, "from", s.clientOf(c), "error", why)
}

// handshakeActive notes that a client has sent its first bytes.
func (s *Server) handshakeActive(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admission.markActive(c)
}

func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admission.end(c)
	delete(s.conns, c)
	s.checkIdleLocked()
}

// checkIdleLocked tells Drain when the last connection has ended. None comes
// after it.
func (s *Server) checkIdleLocked() {
	if s.draining.Load() && len(s.conns) == 0 {
		close(s.idle)
	}
}

// joinExport counts a connection in, at the server and at the export, for the
// identity of its client if that has a key.
func (s *Server) joinExport(c *conn, e *Export, i access.Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exports == nil {
		s.exports = make(map[string]*exportCounters)
	}
	x := s.exports[e.Name]
	if x == nil {
		x = &exportCounters{}
		s.exports[e.Name] = x
	}
	err := s.admission.admit(c, i.Key())
	if err == nil && e.Connections > 0 && x.connections >= e.Connections {
		s.admission.revoke(c)
		err = errTooMany
	}
	if err != nil {
		s.refused++
		return err
	}
	x.connections++
	c.published = new(publishedCounters)
	c.export, c.device, c.identity = e.Name, e.Device, i
	c.counters = x
	return nil
}

// releaseExport undoes joinExport and keeps the connection's counts with the
// export.
func (s *Server) releaseExport(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.counters.connections--
	counts := c.published.load()
	c.counters.retired.add(&counts)
	c.done = &counts
	c.counters, c.published = nil, nil
	s.admission.revoke(c)
}

// effectiveLimits returns the limits with their defaults.
func (s *Server) effectiveLimits() *Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits == nil {
		l := s.Limits.withDefaults()
		s.limits = &l
	}
	return s.limits
}

// log returns the logger, never nil.
func (s *Server) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}
