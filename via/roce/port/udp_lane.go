package port

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// udpLane is one socket of a udpPort.
type udpLane struct {
	tally
	verifier
	port *udpPort
	fd   int
	in   intake
	out  batch

	again [batchMessages]outgoing // what is sent once more, in another way
}

func newUDPLane(p *udpPort, fd int) *udpLane {
	l := &udpLane{port: p, fd: fd, verifier: verifier{local: p.local}}
	l.in.init(p.coalescing)
	l.out.init()
	return l
}

func (l *udpLane) FD() int { return l.fd }

func (l *udpLane) Intact(a *Arrival) bool {
	ok := l.intact(a)
	if !ok {
		l.badICRC.Add(1)
	}
	return ok
}

// Receive takes a batch of datagrams from the kernel, and more only after all
// packets of the batch have been handed out: they lie in its buffers.
func (l *udpLane) Receive(dst []Arrival) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if l.in.isEmpty() {
		if l.port.closed.Load() {
			return 0, net.ErrClosed
		}
		if err := l.fetch(); err != nil {
			return 0, err
		}
	}
	n, malformed := l.in.split(dst, l.port.local.Addr())
	l.malformed.Add(uint64(malformed))
	l.received.Add(uint64(n))
	bytes := 0
	for i := range dst[:n] {
		bytes += len(dst[i].Bytes)
	}
	l.bytesReceived.Add(uint64(bytes))
	return n, nil
}

// fetch fills the buffers with what has arrived.
func (l *udpLane) fetch() error {
	for range mostErrors {
		errno := l.in.fill(l.fd)
		switch {
		case errno == 0:
			l.receiveCalls.Add(1)
			l.overrun.Add(uint64(l.in.overruns()))
			return nil
		case errno == unix.EAGAIN:
			l.emptyCalls.Add(1)
			return nil
		case isFatal(errno):
			return fmt.Errorf("port %v: receive: %w", l.port.local, errno)
		}
	}
	return nil
}

// mostErrors bounds how many errors of the past, such as an ICMP message about a
// packet that was sent, a call skips.
const mostErrors = 8

// isFatal reports whether an error says that the socket cannot be used, where
// others are about a packet or a peer.
func isFatal(errno unix.Errno) bool {
	switch errno {
	case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EOPNOTSUPP:
		return true
	}
	return false
}

// patience is how long Send waits for room in the device.
const patience = time.Millisecond

func (l *udpLane) Send(spans []Span) error {
	if l.port.closed.Load() {
		return net.ErrClosed
	}
	d := dispatch{lane: l}
	for i := range spans {
		for packets := spans[i].Packets; len(packets) > 0 && d.fatal == nil; {
			n := l.out.add(spans[i].To, packets, l.port.segmentation.Load())
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
