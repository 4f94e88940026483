package oob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxExchanges bounds the clients that a Listener serves at once; further ones
// are hung up on.
const maxExchanges = 64

// Listener is a server. It is safe for concurrent use.
type Listener struct {
	tcp      net.Listener
	incoming chan *Exchange
	slots    chan struct{}
	patience time.Duration
	stopped  context.Context
	stop     context.CancelFunc
	wait     sync.WaitGroup
}

// Listen starts a server at a TCP address. It waits for each step of a client, and
// with one for Accept, as long as patience; 0 is 10 s.
func Listen(addr string, patience time.Duration) (*Listener, error) {
	if patience == 0 {
		patience = defaultPatience
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange: %w", err)
	}
	l := &Listener{
		tcp: tcp, incoming: make(chan *Exchange), slots: make(chan struct{}, maxExchanges), patience: patience,
	}
	l.stopped, l.stop = context.WithCancel(context.Background())
	l.wait.Go(l.routineAccept)
	return l, nil
}

// Addr returns the TCP address.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept returns the next client that has told of its end. The exchange is to be
// answered or closed.
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

// Close stops the server, hangs up on clients that Accept has not returned, and
// waits for its goroutines. Exchanges that it has returned go on.
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
			select { // out of descriptors, perhaps: that passes
			case <-l.stopped.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		select {
		case l.slots <- struct{}{}:
			l.wait.Go(func() { l.serve(conn) })
		default:
			conn.Close()
		}
	}
}

// serve hears one client, who has no more time than patience, and hands it over.
func (l *Listener) serve(conn net.Conn) {
	x := &Exchange{conn: conn, patience: l.patience, isServer: true, closed: sync.OnceFunc(func() { <-l.slots })}
	if err := x.step(l.stopped, func() error { return x.hear(0) }); err != nil {
		x.Close() // a stranger; there is nobody to tell
		return
	}
	select {
	case l.incoming <- x:
	case <-l.stopped.Done():
		x.Close()
	case <-time.After(l.patience):
		x.Close()
	}
}
