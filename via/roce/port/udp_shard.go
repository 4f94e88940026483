package port

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// udpShard is one socket of a udpPort.
type udpShard struct {
	counters
	icrcChecker
	port *udpPort
	fd   int
	in   receiver
	out  batch

	retried [batchMessages]outgoing // messages to send as single packets
}

func newUDPShard(p *udpPort, fd int) *udpShard {
	s := &udpShard{port: p, fd: fd, icrcChecker: icrcChecker{local: p.local}}
	s.in.coalescing = p.coalescing
	return s
}

func (s *udpShard) FD() int { return s.fd }

func (s *udpShard) Intact(a *Arrival) bool {
	ok := s.intact(a)
	if !ok {
		s.badICRC.Add(1)
	}
	return ok
}

// Receive receives a batch of datagrams from the kernel. It receives the next
// batch only after it has returned all packets of the last one, which share its
// buffers.
func (s *udpShard) Receive(dst []Arrival) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if s.in.isEmpty() {
		if s.port.closed.Load() {
			return 0, net.ErrClosed
		}
		if err := s.fetch(); err != nil {
			return 0, err
		}
	}
	n, malformed := s.in.split(dst, s.port.local.Addr())
	s.malformed.Add(uint64(malformed))
	s.received.Add(uint64(n))
	bytes := 0
	for i := range dst[:n] {
		bytes += len(dst[i].Bytes)
	}
	s.bytesReceived.Add(uint64(bytes))
	return n, nil
}

// fetch receives a batch into the buffers.
func (s *udpShard) fetch() error {
	for range maxErrors {
		errno := s.in.fill(s.fd)
		switch {
		case errno == 0:
			s.receiveCalls.Add(1)
			s.overrun.Add(uint64(s.in.overruns()))
			return nil
		case errno == unix.EAGAIN:
			s.emptyCalls.Add(1)
			return nil
		case isFatal(errno):
			return fmt.Errorf("port %v: receive: %w", s.port.local, errno)
		}
	}
	return nil
}

// maxErrors bounds the pending socket errors that a call skips, such as an ICMP
// error for an earlier packet.
const maxErrors = 8

// isFatal reports whether an error makes the socket unusable; other errors
// concern a packet or a peer.
func isFatal(errno unix.Errno) bool {
	switch errno {
	case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EOPNOTSUPP:
		return true
	}
	return false
}

func (s *udpShard) Send(spans []Span) error {
	if s.port.closed.Load() {
		return net.ErrClosed
	}
	if s.out.messages == nil {
		s.out.init()
	}
	if s.out.pieces != 0 {
		s.out.reset() // of a Send that ended by a panic
	}
	d := dispatch{shard: s}
	for i := range spans {
		to := spans[i].To.(*udpPeer)
		for packets := spans[i].Packets; len(packets) > 0 && d.fatal == nil; {
			n := s.out.add(to, packets, s.port.segmentation.Load())
			if n == 0 {
				d.flush()
				continue
			}
			packets = packets[n:]
		}
	}
	d.flush()
	if d.fatal != nil {
		return d.fatal
	}
	return d.err
}
