package port

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// option is a socket option and its purpose.
type option struct {
	level, name, value int
	what               string
}

// options4 and options6 are set on every socket before it is bound.
//
// With path MTU discovery the kernel sets DF, and for an unconnected socket
// writes IP ID 0, or i for segment i: the ICRC covers both. Receivers of IPv6
// expect a UDP checksum; RDMA adapters send none, as the ICRC is better.
var (
	options4 = []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, "discover the path MTU"},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "count overruns"},
	}
	options6 = []option{
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "keep to IPv6"},
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "discover the path MTU"},
		{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "receive without UDP checksums"},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "count overruns"},
	}
)

// socket returns a socket bound to the port's address. For the first socket,
// the bind proves that the address is not in use.
func (p *udpPort) socket(more ...option) (fd int, err error) {
	family, options := p.family()
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("port %v: open a UDP socket: %w", p.local, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("port %v: %w", p.local, err), unix.Close(fd))
			fd = -1
		}
	}()
	for _, o := range append(more, options...) {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fd, fmt.Errorf("%s: %w", o.what, err)
		}
	}
	if err := p.enlargeBuffers(fd); err != nil {
		return fd, err
	}
	if p.coalescing {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			return fd, fmt.Errorf("coalesce: %w", err)
		}
	}
	if err := unix.Bind(fd, sockaddr(p.local, p.scope)); err != nil {
		return fd, bindError(err)
	}
	return fd, nil
}

// family returns the family of the port's sockets, and their options.
func (p *udpPort) family() (family int, options []option) {
	if p.local.Addr().Is6() {
		return unix.AF_INET6, options6
	}
	return unix.AF_INET, options4
}

// enlargeBuffers sets the sizes of a socket's buffers.
func (p *udpPort) enlargeBuffers(fd int) error {
	if err := enlarge(fd, p.options.ReceiveBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("set the receive buffer: %w", err)
	}
	if err := enlarge(fd, p.options.SendBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF); err != nil {
		return fmt.Errorf("set the send buffer: %w", err)
	}
	return nil
}

// bindError adds the likely cause to an error of bind.
func bindError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another process has it, or the kernel has for its own RDMA over UDP (module rdma_rxe); "+
			"stop that, or use another UDP port", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface of this host has it", err)
	}
	return fmt.Errorf("bind: %w", err)
}

// enlarge sets the size of a buffer, beyond the system's limit if permitted.
func enlarge(fd, size, force, ask int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, ask, size)
}

// packetMemory is the truesize of one of the longest packets in a receive
// buffer, in bytes: most drivers and loopback use pages.
const packetMemory = 8<<10 + 768

// packetRoom returns how many of the longest packets a receive buffer holds.
func packetRoom(fd int) (int, error) {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0, fmt.Errorf("get the receive buffer: %w", err)
	}
	return n / packetMemory, nil
}

// canSegment reports whether the kernel has UDP_SEGMENT, Linux 4.18.
func canSegment(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	return err == nil
}

// canCoalesce sets UDP_GRO, Linux 5.0, and reports whether the kernel has it.
func canCoalesce(fd int) bool {
	return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
}

// sockaddr converts an address for package unix.
func sockaddr(a netip.AddrPort, scope uint32) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	s := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if a.Addr().IsLinkLocalUnicast() {
		s.ZoneId = scope
	}
	return s
}

// boundTo returns an address with the UDP port that the kernel chose.
func boundTo(fd int, addr netip.AddrPort) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return addr, fmt.Errorf("get the address: %w", err)
	}
	switch s := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(addr.Addr(), uint16(s.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(addr.Addr(), uint16(s.Port)), nil
	}
	return addr, fmt.Errorf("get the address: a %T", name)
}

// linkMTU returns the kernel's path MTU between two addresses, which only a
// connected socket reports.
func linkMTU(from, to netip.Addr, scope uint32) (mtu int, err error) {
	family, level, name := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
	if from.Is6() {
		family, level, name = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("MTU from %v to %v: %w", from, to, err)
		}
	}()
	if from.Is4() != to.Is4() {
		return 0, unix.EAFNOSUPPORT
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0), scope)); err != nil {
		return 0, err
	}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, discard), scope)); err != nil {
		return 0, err
	}
	return unix.GetsockoptInt(fd, level, name)
}

// discard is the UDP port that the socket connects to; it sends nothing.
const discard = 9
