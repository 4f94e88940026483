package handshake

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/viablk/viablk/internal/contain"
)

// engine is TLS without a connection: what arrives and what it sends are bytes.
//
// Its goroutine and the caller of advance take turns: only one of them runs, so
// the fields need no lock.
type engine struct {
	conn   *tls.Conn
	in     []byte        // arrived and not read
	out    []byte        // not fetched by advance
	resume chan struct{} // the goroutine may read on
	wants  chan struct{} // the goroutine has read everything; closed at its end
	last   bool          // nothing more arrives
	begun  bool
	ended  bool
	err    error // of the handshake
}

func newEngine(c *tls.Config, end func(net.Conn, *tls.Config) *tls.Conn) *engine {
	e := &engine{resume: make(chan struct{}), wants: make(chan struct{})}
	e.conn = end(pipe{e}, c)
	return e
}

// advance gives the handshake what arrived, and returns what it sends and
// whether it is complete.
func (e *engine) advance(in []byte) (out []byte, complete bool, err error) {
	e.in = append(e.in, in...)
	switch {
	case e.ended:
		return nil, e.err == nil, e.err
	case !e.begun:
		e.begun = true
		go e.routineHandshake()
	default:
		e.resume <- struct{}{}
	}
	_, wants := <-e.wants
	e.ended = !wants
	out, e.out = e.out, nil
	if wants {
		return out, false, nil
	}
	return out, e.err == nil, e.err
}

// routineHandshake runs the handshake. Its owner is the engine, and close waits
// for its end.
func (e *engine) routineHandshake() {
	defer close(e.wants)
	defer func() { // what a peer sent ends its connection, not the process
		if value := recover(); value != nil {
			p := contain.Caught(value)
			p.Log(nil, "panic: a connection ends in its handshake")
			e.err = fmt.Errorf("handshake: %w", p)
		}
	}()
	e.err = e.conn.Handshake()
}

// close ends the handshake.
func (e *engine) close() {
	e.last = true
	if e.begun && !e.ended {
		e.resume <- struct{}{}
		<-e.wants
		e.ended = true
	}
}

// alert returns the error that the peer sent behind the handshake, or nil.
func (e *engine) alert(in []byte) error {
	if !e.ended {
		_, _, err := e.advance(in)
		return err
	}
	e.in, e.last = append(e.in, in...), true
	_, err := e.conn.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// pipe is the connection of an engine.
type pipe struct{ *engine }

// Read implements [net.Conn] for crypto/tls, on the goroutine.
func (p pipe) Read(b []byte) (int, error) {
	for len(p.in) == 0 && !p.last {
		p.wants <- struct{}{}
		<-p.resume
	}
	if len(p.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.in)
	p.in = p.in[n:]
	return n, nil
}

// Write implements [net.Conn] for crypto/tls, on the goroutine.
func (p pipe) Write(b []byte) (int, error) {
	if len(p.out)+len(b) > maximumFlights*maximumPart {
		return 0, errLong
	}
	p.out = append(p.out, b...)
	return len(b), nil
}

func (pipe) Close() error                     { return nil }
func (pipe) LocalAddr() net.Addr              { return nil }
func (pipe) RemoteAddr() net.Addr             { return nil }
func (pipe) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (pipe) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (pipe) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
