package oob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxExchanges bounds the concurrent clients of a Listener, which closes the
// connections of further ones.
const maxExchanges = 64

// Listener is a server. It is safe for concurrent use.
type Listener struct {
	tcp      net.Listener
	incoming chan *Exchange
	admitted chan struct{}
	timeout  time.Duration
	stopped  context.Context
	stop     context.CancelFunc
	wait     sync.WaitGroup
}

// Listen starts a server at a TCP address. timeout bounds each step of a
// client, and the wait for Accept; 0 is 10 s.
func Listen(addr string, timeout time.Duration) (*Listener, error) {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange: %w", err)
	}
	l := &Listener{
		tcp: tcp, incoming: make(chan *Exchange), admitted: make(chan struct{}, maxExchanges), timeout: timeout,
	}
	l.stopped, l.stop = context.WithCancel(context.Background())
	l.wait.Go(l.routineAccept)
	return l, nil
}

// Addr returns the TCP address.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept returns the next client that has sent its end. The caller answers or
// closes the exchange.
func (l *Listener) Accept(ctx context.Context) (*Exchange, error) {
	select {
	case x := <-l.incoming:
		return x, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("accept out-of-band exchange: %w", context.Cause(ctx))
	case <-l.stopped.Done():
		return nil, fmt.Errorf("accept out-of-band exchange: %w", net.ErrClosed)
	}
}

// Close stops the server, closes the connections of clients that Accept has not
// returned, and waits for its goroutines. Exchanges that Accept has returned
// continue.
func (l *Listener) Close() error {
	l.stop()
	err := l.tcp.Close()
	l.wait.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close out-of-band listener: %w", err)
	}
	return nil
}

// routineAccept takes TCP connections until Close.
func (l *Listener) routineAccept() {
	for l.stopped.Err() == nil {
		conn, err := l.tcp.Accept()
		if err != nil {
			select { // possibly out of file descriptors, which is temporary
			case <-l.stopped.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		select {
		case l.admitted <- struct{}{}:
			l.wait.Go(func() { l.serve(conn) })
		default:
			conn.Close()
		}
	}
}

// serve reads the line of one client, for timeout at most, and hands the
// exchange to Accept.
func (l *Listener) serve(conn net.Conn) {
	x := &Exchange{conn: conn, timeout: l.timeout, isServer: true, closed: sync.OnceFunc(func() { <-l.admitted })}
	if err := x.step(l.stopped, func() error { return x.readPeer(0) }); err != nil {
		x.Close() // an unauthenticated client: no report
		return
	}
	select {
	case l.incoming <- x:
	case <-l.stopped.Done():
		x.Close()
	case <-time.After(l.timeout):
		x.Close()
	}
}
