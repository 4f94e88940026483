package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// How an address moves to another process: by the socket of shard 0, at which
// requests to connect arrive. As long as one of the two has it, no other
// process can bind the address, and packets wait in its buffer. The sockets of
// other shards close with their port, before the next process receives: without
// them the kernel delivers all packets to shard 0, also those for queue pairs
// that were another shard's. The next process opens shards as it needs them.

// Mover is a port whose address can move to another process.
type Mover interface {
	// CopySocket returns a further descriptor of the socket of shard 0, for
	// [AdoptUDP] once this port is closed. The caller owns it.
	CopySocket() (fd int, err error)
}

// CopySocket implements [Mover].
func (p *udpPort) CopySocket() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return -1, net.ErrClosed
	}
	fd, err := unix.FcntlInt(uintptr(p.first), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("port %v: copy the descriptor: %w", p.local, err)
	}
	return fd, nil
}

// AdoptUDP is [OpenUDP] with the socket of a port that was closed, in this
// process or another one, in place of a new one. It owns the descriptor, also
// if there is an error. The count of overruns goes on.
func AdoptUDP(fd int, addr netip.AddrPort, o UDPOptions) (Port, error) {
	unix.CloseOnExec(fd)
	adopted := false
	p, err := openUDP(addr, o, func(p *udpPort) (int, error) {
		err := p.checkSocket(fd)
		if err == nil {
			err = p.reset(fd)
		}
		if err != nil {
			return -1, fmt.Errorf("port %v: socket of another process: %w", p.local, err)
		}
		adopted = true
		return fd, nil
	})
	if !adopted {
		_ = unix.Close(fd)
	}
	return p, err
}

// checkSocket checks that a descriptor is a UDP socket with the address of the
// port.
func (p *udpPort) checkSocket(fd int) error {
	for _, o := range []option{
		{unix.SOL_SOCKET, unix.SO_TYPE, unix.SOCK_DGRAM, "type"},
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_UDP, "protocol"},
	} {
		if is, err := unix.GetsockoptInt(fd, o.level, o.name); err != nil {
			return fmt.Errorf("get the %s: %w", o.what, err)
		} else if is != o.value {
			return fmt.Errorf("%s %d: %w", o.what, is, unix.EPROTOTYPE)
		}
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("it is connected: %w", errors.Join(unix.EISCONN, err))
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("get the address: %w", err)
	}
	var is netip.AddrPort
	switch s := name.(type) {
	case *unix.SockaddrInet4:
		is = netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		if s.ZoneId != p.scope {
			return fmt.Errorf("it is of interface %d, not %d: %w", s.ZoneId, p.scope, unix.EADDRNOTAVAIL)
		}
		is = netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	if want := netip.AddrPortFrom(p.local.Addr().WithZone(""), p.local.Port()); is != want {
		return fmt.Errorf("it has the address %v: %w", is, unix.EADDRNOTAVAIL)
	}
	return nil
}

// reset gives a socket the options of a new one that is bound: those of another
// version may differ, and the port before has shared the address with its other
// shards.
func (p *udpPort) reset(fd int) error {
	_, options := p.family()
	for _, o := range slices.Concat(options, []option{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 0, "share the address no more"}}) {
		if o.name == unix.IPV6_V6ONLY && o.level == unix.IPPROTO_IPV6 {
			continue // the address says so
		}
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 0) // an old kernel has no such option
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("set nonblocking: %w", err)
	}
	return p.enlargeBuffers(fd)
}
