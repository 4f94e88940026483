package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// MaximumDatagram is the longest datagram of a round trip, bytes: with it no
// packet is fragmented on any network that IPv6 may use.
const MaximumDatagram = 1280 - 40 - 8

// socket is a UDP socket. It is not connected, as those of RoCE are not,
// because one of them has many peers. One goroutine uses it.
type socket struct {
	fd     int
	buffer []byte
	peer   sockaddr // of the other end, or of the last datagram that arrived
}

// sockaddr is an address as the kernel takes it.
type sockaddr struct {
	bytes  [unix.SizeofSockaddrInet6]byte
	length uint32
}

// set encodes an address (ip(7), ipv6(7)).
func (s *sockaddr) set(a netip.AddrPort) {
	binary.BigEndian.PutUint16(s.bytes[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.bytes[:], unix.AF_INET)
		copy(s.bytes[4:], a.Addr().AsSlice())
		s.length = unix.SizeofSockaddrInet4
		return
	}
	binary.NativeEndian.PutUint16(s.bytes[:], unix.AF_INET6)
	copy(s.bytes[8:], a.Addr().AsSlice())
	s.length = unix.SizeofSockaddrInet6
}

// openUDP opens a socket at an address, and a port that the system chooses, for
// datagrams of a size.
func openUDP(at netip.Addr, size int) (*socket, error) {
	family, bind := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: at.As16()})
	if at.Is4() {
		family, bind = unix.AF_INET, &unix.SockaddrInet4{Addr: at.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a UDP socket: %w", err)
	}
	if err := unix.Bind(fd, bind); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a UDP socket to %v: %w", at, err), unix.Close(fd))
	}
	return &socket{fd: fd, buffer: make([]byte, size+1)}, nil // a longer one shows
}

// port returns the local port.
func (s *socket) port() (uint16, error) {
	a, err := unix.Getsockname(s.fd)
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port), nil
	case *unix.SockaddrInet6:
		return uint16(a.Port), nil
	}
	return 0, fmt.Errorf("ask for the port of a socket: %w", err)
}

// Arm implements source.
func (s *socket) Arm() bool { return true }

// FD implements source.
func (s *socket) FD() int { return s.fd }

func (s *socket) close() error { return unix.Close(s.fd) }

// send sends a datagram to the peer.
func (s *socket) send() error {
	if errno := sendDatagram(s.fd, s.buffer[:len(s.buffer)-1], &s.peer); errno != 0 {
		return fmt.Errorf("send a datagram: %w", errno)
	}
	return nil
}

// receive takes a datagram, and returns false if there is none.
func (s *socket) receive() (bool, error) {
	n, errno := receiveDatagram(s.fd, s.buffer, &s.peer)
	switch {
	case errno == unix.EAGAIN:
		return false, nil
	case errno != 0:
		return false, fmt.Errorf("receive a datagram: %w", errno)
	case n != len(s.buffer)-1:
		return false, fmt.Errorf("a datagram of %d bytes, not %d: %w", n, len(s.buffer)-1, errStale)
	}
	return true, nil
}

// await waits for a datagram.
func (s *socket) await(w *waiter) error {
	for {
		if err := w.step(); err != nil {
			return err
		}
		here, err := s.receive()
		if err != nil {
			return err
		}
		if here {
			w.busy()
			return nil
		}
		if err := w.idle(); err != nil {
			return err
		}
	}
}

// udp measures round trips of datagrams.
func (s *session) udp(x Case) (out sample, err error) {
	out = sample{ops: s.cfg.ops(x), arrived: 1}
	a, err := s.ask(request{Step: &step{Role: datagrams, Size: x.Size, Wait: x.Wait, Spin: s.cfg.Spin}})
	if err != nil {
		return out, err
	}
	from := netip.IPv4Unspecified()
	if s.cfg.Network.Is6() {
		from = netip.IPv6Unspecified()
	}
	c, err := openUDP(from, x.Size)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	c.peer.set(netip.AddrPortFrom(s.cfg.Network, a.Port))
	w := newWaiter(s.ctx, c, x.Wait, s.cfg.Spin)
	w.hangTimeout, w.alive = s.cfg.Timeout, s.ctl.stands
	if err := c.pingPong(&w, s.samples(warm(x, out.ops))); err != nil {
		return out, err
	}
	latency := s.samples(out.ops)
	out.counters, err = s.count(new(circuit), out.ops, func() error { return c.pingPong(&w, latency) })
	if err != nil {
		return out, err
	}
	out.latency = distribute(latency, 0.5)
	out.time = out.latency.P50
	_, err = s.ask(request{Stop: true})
	return out, err
}

// pingPong stores the time of each round trip, in nanoseconds; one reading of
// the clock is part of it.
func (s *socket) pingPong(w *waiter, latency []int64) error {
	start := time.Now()
	var last time.Duration
	for i := range latency {
		if err := s.send(); err != nil {
			return err
		}
		if err := s.await(w); err != nil {
			return err
		}
		now := time.Since(start)
		latency[i] = int64(now - last)
		last = now
	}
	return nil
}

// echoDatagrams answers datagrams until the step is to stop.
func (v *visit) echoDatagrams(st *step) (err error) {
	c, err := openUDP(v.Network, st.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	port, err := c.port()
	if err != nil {
		return err
	}
	if err := v.ctl.send(answer{Port: port}); err != nil {
		return err
	}
	w := newWaiter(v.ctx, c, st.Wait, st.Spin)
	w.alive, w.aside = v.ctl.stands, v.ctl
	echoed := 0
	return v.untilStop(func() error {
		for {
			if err := c.await(&w); err != nil {
				return err
			}
			if err := c.send(); err != nil {
				return err
			}
			echoed++
		}
	}, func() int { return echoed })
}
