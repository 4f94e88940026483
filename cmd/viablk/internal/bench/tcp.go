package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// streamWrite is how much the stream writes and reads at a time, bytes.
const streamWrite = 64 << 10

// streamCase is the case of the stream. Its ends wait as the runtime's network
// poller does: they look, then sleep.
var streamCase = Case{Mode: TCP, Size: streamWrite, Wait: Sleep, VIs: 1}

// slowest is the rate at which a stream is taken for one that hangs, bytes a
// second.
const slowest = 1 << 20

// A chunk of the stream is its length, 8 bytes, and as many bytes. When all
// have arrived the receiver answers with one byte.

// tcp measures the stream. It is written by a goroutine that is free to move:
// one that is locked to its thread pays for every sleep of the poller.
func (s *session) tcp(x Case) (sample, error) {
	out := sample{ops: s.cfg.ops(x), arrived: 1}
	a, err := s.ask(request{Step: &step{Role: stream}})
	if err != nil {
		return out, err
	}
	to := netip.AddrPortFrom(s.cfg.Network, a.Port)
	c, err := dialStream(s.ctx, to)
	if err != nil {
		return out, err
	}
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { _ = c.Close() })()
	chunk := func(ops int) error {
		err := freely(func() error { return writeChunk(c, x.Size, ops, s.cfg.Timeout) })
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		return err
	}
	if err := chunk(warm(x, out.ops)); err != nil {
		return out, err
	}
	var elapsed time.Duration
	out.counters, err = s.count(new(circuit), out.ops, func() error {
		start := time.Now()
		err := chunk(out.ops)
		elapsed = time.Since(start)
		return err
	})
	if err != nil {
		return out, err
	}
	out.time = perOp(elapsed, out.ops)
	_, err = s.ask(request{Stop: true})
	return out, err
}

// freely runs f on a goroutine of its own.
func freely(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

// dialStream connects.
func dialStream(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, fmt.Errorf("connect the stream: %w", err)
	}
	return c, nil
}

// writeChunk sends a chunk and waits until it has arrived.
func writeChunk(c net.Conn, size, writes int, timeout time.Duration) error {
	total := size * writes
	limit := timeout + time.Duration(total/slowest)*time.Second
	b := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(b, uint64(total))
	err := c.SetDeadline(time.Now().Add(limit))
	if err == nil {
		_, err = c.Write(b[:8])
	}
	for ; err == nil && writes > 0; writes-- {
		_, err = c.Write(b[:size])
	}
	if err == nil {
		_, err = io.ReadFull(c, b[:1])
	}
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	return nil
}

// receiveStream receives a stream until the step is to stop.
func (v *visit) receiveStream() (err error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(v.Network, 0).String())
	if err != nil {
		return fmt.Errorf("listen for the stream: %w", err)
	}
	defer l.Close()
	if err := v.ctl.send(answer{Port: l.Addr().(*net.TCPAddr).AddrPort().Port()}); err != nil {
		return err
	}
	timeout, cancel := context.WithTimeout(v.ctx, connectTimeout)
	defer cancel()
	defer context.AfterFunc(timeout, func() { _ = l.Close() })()
	c, err := l.Accept()
	if err != nil {
		return fmt.Errorf("accept the stream: %w", err)
	}
	taken := make(chan error, 1)
	go func() { taken <- readChunks(c) }()
	err = v.untilStop(v.asked, func() int { return 0 })
	return errors.Join(err, c.Close(), <-taken)
}

// asked waits for a request.
func (v *visit) asked() error {
	if err := v.ctl.await(v.ctx, 0); err != nil {
		return err
	}
	return errAsked
}

// readChunks takes chunks until the other end or this one closes the
// connection.
func readChunks(c net.Conn) error {
	b := make([]byte, streamWrite)
	for {
		_, err := io.ReadFull(c, b[:8])
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stream: %w", err)
		}
		for left := binary.BigEndian.Uint64(b); left > 0; {
			n, err := c.Read(b[:min(left, uint64(len(b)))])
			if err != nil {
				return fmt.Errorf("stream: %w", err)
			}
			left -= uint64(n)
		}
		if _, err := c.Write(b[:1]); err != nil {
			return fmt.Errorf("stream: %w", err)
		}
	}
}
