package oob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Port is the TCP port of ibv_rc_pingpong.
const Port = 18515

// defaultTimeout bounds each wait for the other end, in addition to the
// context.
const defaultTimeout = 10 * time.Second

// ErrOrder is the error of a call that belongs to the other end, or is
// repeated.
var ErrOrder = errors.New("call out of order in the exchange")

// Exchange is one exchange in progress. One goroutine at a time uses it; Close
// may be called concurrently, and ends it.
type Exchange struct {
	Peer End // the other end

	conn     net.Conn
	timeout  time.Duration
	isServer bool
	over     bool
	closed   func() // of the listener
}

// Dial sends an end to a server, and receives the server's. Done ends the
// exchange.
func Dial(ctx context.Context, addr string, mine End) (*Exchange, error) {
	line, err := mine.line()
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange with %s: %w", addr, err)
	}
	dialer := net.Dialer{Timeout: defaultTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange: %w", err)
	}
	x := &Exchange{conn: conn, timeout: defaultTimeout, closed: func() {}}
	err = x.step(ctx, func() error {
		if _, err := conn.Write(line); err != nil {
			return err
		}
		return x.readPeer(len(line))
	})
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("out-of-band exchange with %s: %w", addr, err)
	}
	return x, nil
}

// Done tells the server that the client's queue pair is ready, and ends the
// exchange.
func (x *Exchange) Done(ctx context.Context) error {
	return x.finish(ctx, false, func() error {
		_, err := x.conn.Write([]byte(doneLine))
		return err
	})
}

// Answer sends the server's end in the client's form, waits until the client's
// queue pair is ready, and ends the exchange.
func (x *Exchange) Answer(ctx context.Context, mine End) error {
	mine.Extended = x.Peer.Extended
	line, err := mine.line()
	if err != nil {
		return fmt.Errorf("out-of-band exchange with %v: %w", x.conn.RemoteAddr(), err)
	}
	return x.finish(ctx, true, func() error {
		if _, err := x.conn.Write(line); err != nil {
			return err
		}
		var done [len(doneLine)]byte
		if _, err := io.ReadFull(x.conn, done[:]); err != nil {
			return err
		}
		if string(done[:]) != doneLine {
			return fmt.Errorf("%q instead of done: %w", done, ErrLine)
		}
		return nil
	})
}

// RemoteAddr returns the remote address of the TCP connection.
func (x *Exchange) RemoteAddr() net.Addr { return x.conn.RemoteAddr() }

// Close aborts the exchange; the other end gets an error. After Done or Answer
// it does nothing.
func (x *Exchange) Close() error {
	x.closed()
	if err := x.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close out-of-band exchange: %w", err)
	}
	return nil
}

// finish runs the last step of an end.
func (x *Exchange) finish(ctx context.Context, server bool, do func() error) error {
	if x.isServer != server || x.over {
		return fmt.Errorf("out-of-band exchange: %w", ErrOrder)
	}
	x.over = true
	err := x.step(ctx, do)
	if err != nil {
		err = fmt.Errorf("out-of-band exchange with %v: %w", x.conn.RemoteAddr(), err)
	}
	return errors.Join(err, x.Close())
}

// step runs do on the connection, bounded by the context and the timeout. A
// step that completes before they expire succeeds.
func (x *Exchange) step(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		x.conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	err := do()
	if stop() {
		return err
	}
	<-interrupted
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return x.conn.SetDeadline(time.Time{})
}

// readPeer reads the other end's line: a client expects the form of its own
// line, a server accepts both forms.
func (x *Exchange) readPeer(size int) error {
	b := make([]byte, len(extendedLine))
	if _, err := io.ReadFull(x.conn, b[:len(plainLine)]); err != nil {
		return err
	}
	if last := len(plainLine) - 1; size == 0 {
		size = len(plainLine)
		if b[last] == extendedLine[last] {
			size = len(extendedLine)
		}
	}
	if _, err := io.ReadFull(x.conn, b[len(plainLine):size]); err != nil {
		return err
	}
	var err error
	x.Peer, err = parse(b[:size])
	return err
}
