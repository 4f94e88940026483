package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
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

	requests chan struct{} // holds one for each request in progress
	drained  chan struct{} // closed at the end of drain
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
	return &pacedListener{
		Listener: l, places: make(chan struct{}, connections), pace: p, closed: make(chan struct{}),
		requests: make(chan struct{}, connections), drained: make(chan struct{}),
	}
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

// callWait is how long a drain waits for a connection without a request in
// progress: its client may never send one, and clients of the disks wait for
// the end of a drain before a takeover.
const callWait = 250 * time.Millisecond

// drain accepts nothing more, and waits until all connections are closed: each
// has its answer. Those without a request in progress get callWait. A server
// that is told to shut down drops requests that it has not read.
func (l *pacedListener) drain(ctx context.Context) error {
	defer close(l.drained)
	err := l.Close()
	held := fill(ctx, callWait, l.places, cap(l.places))
	if held > 0 && len(l.requests) > 0 {
		fill(ctx, 0, l.requests, cap(l.requests))
		fill(ctx, callWait, l.places, held) // what these answered
	}
	return errors.Join(err, context.Cause(ctx))
}

// fill takes n places, which it waits for until ctx ends, and for limit at most
// unless that is 0. It returns how many are left.
func fill(ctx context.Context, limit time.Duration, places chan struct{}, n int) int {
	if limit != 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, limit)
		defer done()
	}
	for ; n > 0; n-- {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return n
		}
	}
	return 0
}

// noted returns a handler whose requests a drain waits for, but for profiles.
func (l *pacedListener) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/debug/") {
			select {
			case l.requests <- struct{}{}:
				defer func() { <-l.requests }()
			case <-l.drained:
			}
		}
		next.ServeHTTP(w, r)
	})
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

// Close implements net.Listener. A drain and the server close it, in any order:
// the second time nothing happens.
func (l *pacedListener) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
	})
	return err
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
