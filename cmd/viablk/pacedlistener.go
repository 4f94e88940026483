package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// pacedListener accepts a bounded number of connections at a time, and a
// bounded number in a second. Others wait in the kernel's backlog.
type pacedListener struct {
	net.Listener
	places chan struct{} // one element for each connection
	pace   pace          // of the goroutine in Accept
	once   sync.Once
	closed chan struct{}

	drained chan struct{} // closed at the end of drain
}

// pace admits one event in each interval, and more after a pause. Events that
// have to wait come in batches: to wake up for each costs more than a scrape.
type pace struct {
	interval time.Duration
	burst    int // events after a pause
	batch    int // 0 is as 1
	next     time.Time
}

// wait returns how long the next event has to wait at a time.
func (p *pace) wait(now time.Time) time.Duration {
	if first := now.Add(-time.Duration(p.burst) * p.interval); p.next.Before(first) {
		p.next = first
	}
	p.next = p.next.Add(p.interval)
	wait := p.next.Sub(now)
	if wait <= 0 {
		return 0
	}
	return wait + time.Duration(max(0, p.batch-1))*p.interval
}

func newPacedListener(l net.Listener, connections int, p pace) *pacedListener {
	return &pacedListener{Listener: l, places: make(chan struct{}, connections), pace: p, closed: make(chan struct{}), drained: make(chan struct{})}
}

// Accept implements net.Listener. One goroutine calls it.
func (l *pacedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	if wait := l.pace.wait(time.Now()); wait > 0 {
		limit := time.NewTimer(wait)
		defer limit.Stop()
		select {
		case <-limit.C:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &pacedConn{Conn: c, release: sync.OnceFunc(func() { <-l.places })}, nil
}

// drain accepts nothing more, and waits until all connections are closed: each
// has its answer. A server that is told to shut down drops requests that it has
// not read.
func (l *pacedListener) drain(ctx context.Context) error {
	defer close(l.drained)
	err := l.Close()
	for range cap(l.places) {
		select {
		case l.places <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

// ended returns the error of a server of l that has returned one, nil after
// drain, for whose end it waits: the last calls use what the server has.
func (l *pacedListener) ended(ctx context.Context, err error) error {
	if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	select {
	case <-l.drained:
	case <-ctx.Done():
	}
	return nil
}

// Close implements net.Listener.
func (l *pacedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// pacedConn gives its place back when it is closed.
type pacedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *pacedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
