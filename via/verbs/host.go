//go:build verbs && cgo

package verbs

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// servicePort is viablk's own service, a port of the TCP port space.
const servicePort = 10809

// resolve finds the address of a host: "ADDR[:PORT]", where ADDR is an IPv4 address,
// an IPv6 address, in brackets if a port follows, or a name, and PORT one of the port
// space of the connection manager.
func resolve(ctx context.Context, host string) (netip.AddrPort, error) {
	name, port := host, uint16(servicePort)
	if _, err := netip.ParseAddr(host); err != nil {
		if h, p, err := net.SplitHostPort(host); err == nil {
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil || n == 0 {
				return netip.AddrPort{}, fmt.Errorf("host %q: port %q is no number of 16 bits: %w", host, p, via.ErrInvalidParameter)
			}
			name, port = h, uint16(n)
		}
	}
	if name == "" {
		return netip.AddrPort{}, fmt.Errorf("host %q names no address: %w", host, via.ErrInvalidParameter)
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), port), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("resolve %q: %w: %w", name, via.ErrNotReachable, err)
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), port), nil
}

// sockaddrSize is the length of a struct sockaddr_in6, bytes.
const sockaddrSize = 28

// sockaddr encodes an address as a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) []byte {
	b := make([]byte, sockaddrSize)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
		return b
	}
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	ip := a.Addr().As16()
	copy(b[8:], ip[:])
	if i, err := net.InterfaceByName(a.Addr().Zone()); err == nil {
		binary.NativeEndian.PutUint32(b[24:], uint32(i.Index))
	}
	return b
}

// addrPort decodes one.
func addrPort(b []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	if binary.NativeEndian.Uint16(b) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
}
