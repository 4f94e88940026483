package nbd

import (
	"io"

	"golang.org/x/sys/unix"
)

// Stream is the connection of a client in the transmission phase, with or
// without TLS. Its methods never block: what cannot be done now is EAGAIN. One
// goroutine at a time uses it.
type Stream struct {
	sock    socket
	tls     *secure // nil without TLS
	message message
	iov     []unix.Iovec
}

// newStream takes sock, on which s speaks TLS unless it is nil.
func newStream(sock socket, s *secure) *Stream {
	if s != nil {
		s.attach(sock)
	}
	return &Stream{sock: sock, tls: s, iov: make([]unix.Iovec, 0, StreamBuffers)}
}

// StreamBuffers bounds how many buffers Send sends at a time.
const StreamBuffers = 64

// FD returns the descriptor to poll: for reading, and while Send is blocked or
// Pending reports true for writing.
func (s *Stream) FD() int { return int(s.sock) }

// Receive fills first and then rest with what has arrived, and returns how many
// bytes; rest may be empty. If these are fewer than there is room for, it was
// everything. It returns [io.EOF] at the end of the stream.
func (s *Stream) Receive(first, rest []byte) (int, error) {
	if s.tls != nil {
		n, err := end(s.tls.receive(first))
		if n == len(first) && len(rest) > 0 {
			more, _ := s.tls.receive(rest) // an error stays
			n += more
		}
		return n, err
	}
	if len(rest) == 0 {
		n, e := s.sock.receive(first)
		if e != 0 {
			return 0, e
		}
		return end(n, nil)
	}
	s.iov = append(s.iov[:0], unix.Iovec{}, unix.Iovec{})
	setIovec(&s.iov[0], first)
	setIovec(&s.iov[1], rest)
	s.message.use(s.iov)
	n, e := s.sock.scatter(&s.message)
	s.forget()
	if e != 0 {
		return 0, e
	}
	return end(n, nil)
}

// end turns an end of the stream into its error.
func end(n int, err error) (int, error) {
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Send sends the buffers in order, of which none is empty, and returns how many
// bytes it took: less than all of them if the connection takes no more now.
func (s *Stream) Send(buffers [][]byte) (int, error) {
	s.iov = s.iov[:min(len(buffers), StreamBuffers)]
	for i := range s.iov {
		setIovec(&s.iov[i], buffers[i])
	}
	defer s.forget()
	if s.tls != nil {
		return s.tls.gather(s.iov)
	}
	s.message.use(s.iov)
	n, e := s.sock.gather(&s.message)
	if e != 0 {
		return 0, e
	}
	return n, nil
}

// forget drops the references to the buffers of a call.
func (s *Stream) forget() {
	s.iov = s.iov[:cap(s.iov)]
	clear(s.iov)
	s.iov = s.iov[:0]
}

// Pending reports whether ciphertext waits for the connection to take it.
func (s *Stream) Pending() bool { return s.tls.pending() }

// Flush sends what is pending, as far as the connection takes it.
func (s *Stream) Flush() error {
	if s.tls == nil {
		return nil
	}
	if _, e := s.tls.wire.flush(); e != 0 {
		return e
	}
	return nil
}

// Close closes the connection. The peer sees its end although other processes
// may hold the socket.
func (s *Stream) Close() {
	if s.sock < 0 {
		return
	}
	s.tls.closeNotify()
	_ = unix.Shutdown(int(s.sock), unix.SHUT_RDWR)
	s.tls.releaseBuffers()
	s.sock.close()
	s.sock = -1
}
