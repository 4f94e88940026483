package nbd

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// TLS is how a server speaks TLS. The zero value does not.
type TLS struct {
	// Config has the server's certificate and, if clients are to prove who they
	// are, a check of theirs: tls.RequireAndVerifyClientCert, or
	// VerifyConnection beside tls.RequireAnyClientCert. nil: STARTTLS is not
	// offered.
	Config *tls.Config

	// Required refuses everything but STARTTLS and ABORT before TLS is up.
	Required bool
}

// secure is a connection under TLS, in both phases: a [net.Conn] that blocks in
// the handshake, and afterwards what the transmission loop has in place of its
// socket. There it never blocks: what cannot be received yet is EAGAIN, and
// what the socket does not take yet is kept, less than sealAtOnce plus
// overhead.
//
// The protocol is that of crypto/tls, which is driven here over a wire that
// changes from one phase to the other under it, so nothing that it has buffered
// is lost in between.
type secure struct {
	*tls.Conn
	wire     *wire
	verified bool   // after the handshake, the client's certificate
	sealed   []byte // a record's plaintext that is being put together
}

const (
	// sealAtOnce bounds what is encrypted before the socket has taken it, in
	// bytes.
	sealAtOnce = 256 << 10

	// recordSize is the most plaintext of a record, in bytes.
	recordSize = 16 << 10
)

// wire is what TLS records travel on: the connection of the handshake, or the
// loop's socket.
type wire struct {
	net.Conn        // of the handshake; closed in transmission
	attached bool   // transmission has begun
	sock     socket // in transmission
	in       []byte // received ciphertext; see widen
	r, w     int    // in[r:w] is not read yet
	out      []byte // ciphertext that is not sent yet
	sent     int    // of out
	syscalls uint64 // of the system, on sock, that are not counted yet
}

// errWouldBlock tells crypto/tls that there is nothing to read now. Errors that
// call themselves temporary do not end its connection.
var errWouldBlock net.Error = wouldBlockError{}

type wouldBlockError struct{}

func (wouldBlockError) Error() string   { return "nothing has arrived" }
func (wouldBlockError) Timeout() bool   { return true }
func (wouldBlockError) Temporary() bool { return true }

// newSecure speaks TLS on conn, as a server; the handshake is still to come.
func newSecure(conn net.Conn, config *tls.Config) *secure {
	w := &wire{Conn: conn}
	return &secure{Conn: tls.Server(w, config), wire: w, verified: verifies(config)}
}

// newSecureClient speaks TLS on conn, as a client; the handshake is still to
// come.
func newSecureClient(conn net.Conn, config *tls.Config) *secure {
	w := &wire{Conn: conn}
	return &secure{Conn: tls.Client(w, config), wire: w}
}

// verifies reports whether a handshake succeeds only if a trusted authority
// signed the certificate of the client.
func verifies(config *tls.Config) bool {
	return config.ClientAuth == tls.RequireAndVerifyClientCert ||
		config.ClientAuth == tls.RequireAnyClientCert && config.VerifyConnection != nil
}

// attach changes from the connection of the handshake to the loop's socket.
func (s *secure) attach(sock socket) {
	s.wire.attached, s.wire.sock = true, sock
}

// releaseBuffers gives back the buffers, in which there is nothing.
func (s *secure) releaseBuffers() {
	if s == nil {
		return
	}
	w := s.wire
	recycle(w.in)
	w.in, w.r, w.w, w.out = nil, 0, 0, nil
	s.sealed = nil
}

// Read implements [io.Reader] for crypto/tls.
func (w *wire) Read(p []byte) (int, error) {
	if !w.attached {
		return w.Conn.Read(p)
	}
	if w.r == w.w {
		if w.w == len(w.in) { // as long as it is full every time
			w.in = widen(w.in, nil)
		}
		n, e := w.sock.receive(w.in)
		w.syscalls++
		switch {
		case e == unix.EAGAIN:
			return 0, errWouldBlock
		case e != 0:
			return 0, os.NewSyscallError("receive", e)
		case n == 0:
			return 0, io.EOF
		}
		w.r, w.w = 0, n
	}
	n := copy(p, w.in[w.r:w.w])
	w.r += n
	return n, nil
}

// Write implements [io.Writer] for crypto/tls.
func (w *wire) Write(p []byte) (int, error) {
	if !w.attached {
		return w.Conn.Write(p)
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

// flush gives the socket what it takes, and reports whether that was all there
// is.
func (w *wire) flush() (bool, syscall.Errno) {
	for w.sent < len(w.out) {
		n, e := w.sock.send(w.out[w.sent:])
		w.syscalls++
		if e == unix.EAGAIN {
			return false, 0
		}
		if e != 0 {
			return false, e
		}
		w.sent += n
	}
	w.out, w.sent = w.out[:0], 0
	return true, 0
}

// drainSyscalls returns how many system calls were made since it was called
// last.
func (s *secure) drainSyscalls() uint64 {
	n := s.wire.syscalls
	s.wire.syscalls = 0
	return n
}

// pending reports whether ciphertext waits for the socket. A nil secure has
// none.
func (s *secure) pending() bool { return s != nil && len(s.wire.out) > 0 }

// receive fills p with plaintext, as far as it has arrived. 0 and no error is
// the end of the stream.
func (s *secure) receive(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		n, err := s.Read(p[total:])
		total += n
		switch {
		case err == nil:
		case errors.Is(err, errWouldBlock) && total == 0:
			return 0, unix.EAGAIN
		case total > 0: // the rest is told next time
			return total, nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return 0, nil
		default:
			return 0, err
		}
	}
	return total, nil
}

// gather encrypts the buffers in order and sends them, and returns how many
// bytes it took. It takes none while the socket has not taken what was
// encrypted before.
func (s *secure) gather(iov []unix.Iovec) (int, error) {
	if done, e := s.wire.flush(); e != 0 {
		return 0, e
	} else if !done {
		return 0, unix.EAGAIN
	}
	total := 0
	for i := range iov {
		p := buffer(&iov[i])
		p = p[:min(len(p), sealAtOnce-total)]
		if err := s.seal(p); err != nil {
			return 0, err
		}
		if total += len(p); total == sealAtOnce {
			break
		}
	}
	if err := s.finish(); err != nil {
		return 0, err
	}
	_, e := s.wire.flush()
	if e != 0 {
		return 0, e
	}
	return total, nil
}

// seal encrypts p, small pieces together: a record costs more than its bytes.
func (s *secure) seal(p []byte) error {
	if len(s.sealed)+len(p) > recordSize {
		if err := s.finish(); err != nil {
			return err
		}
	}
	if len(p) > recordSize/2 {
		if err := s.finish(); err != nil {
			return err
		}
		_, err := s.Conn.Write(p)
		return err
	}
	if s.sealed == nil {
		s.sealed = make([]byte, 0, recordSize)
	}
	s.sealed = append(s.sealed, p...)
	return nil
}

// finish encrypts what was put together.
func (s *secure) finish() error {
	if len(s.sealed) == 0 {
		return nil
	}
	_, err := s.Conn.Write(s.sealed)
	s.sealed = s.sealed[:0]
	return err
}

// closeNotify tells the client that nothing more comes, if the socket takes
// that.
func (s *secure) closeNotify() {
	if s != nil && s.CloseWrite() == nil {
		_, _ = s.wire.flush()
	}
}
