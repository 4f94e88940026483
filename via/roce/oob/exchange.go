package oob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Port is where ibv_rc_pingpong and its like listen, TCP.
const Port = 18515

// defaultPatience bounds each wait for the other end, whatever the context says.
const defaultPatience = 10 * time.Second

// ErrOrder is the error of a call that is the other end's, or has been made.
var ErrOrder = errors.New("not this end's turn")

// Exchange is one exchange under way. One goroutine at a time uses it; Close may
// be called beside it, and ends it.
type Exchange struct {
	Peer End // the other end

	conn     net.Conn
	patience time.Duration
	isServer bool
	over     bool
	closed   func() // of the listener
}

// Dial tells a server of an end, and hears of the server's. Done ends the
// exchange.
func Dial(ctx context.Context, addr string, mine End) (*Exchange, error) {
	line, err := mine.line()
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange with %s: %w", addr, err)
	}
	dialer := net.Dialer{Timeout: defaultPatience}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("out-of-band exchange: %w", err)
	}
	x := &Exchange{conn: conn, patience: defaultPatience, closed: func() {}}
	err = x.step(ctx, func() error {
		if _, err := conn.Write(line); err != nil {
			return err
		}
		return x.hear(len(line))
	})
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("out-of-band exchange with %s: %w", addr, err)
	}
	return x, nil
}

// Done says that the client's queue pair is ready, and ends the exchange.
func (x *Exchange) Done(ctx context.Context) error {
	return x.finish(ctx, false, func() error {
		_, err := x.conn.Write([]byte(doneLine))
		return err
	})
}

// Answer tells the client of the server's end, in the client's form, waits until
// its queue pair is ready, and ends the exchange.
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

// RemoteAddr returns where the TCP connection comes from, or goes to.
func (x *Exchange) RemoteAddr() net.Addr { return x.conn.RemoteAddr() }

// Close ends the exchange; the other end sees that nothing came of it. After Done
// or Answer it does nothing.
func (x *Exchange) Close() error {
	x.closed()
	if err := x.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close out-of-band exchange: %w", err)
	}
	return nil
}

// finish takes the last step of an end.
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

// step does something with the connection, within the context and patience. What
// was done before they ended is done.
func (x *Exchange) step(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, x.patience)
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

// hear reads the other end's line: a client's form is that of its own line, a
// server's that of what comes.
func (x *Exchange) hear(size int) error {
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
