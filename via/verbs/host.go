//go:build verbs && cgo

package verbs

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/rdmahost"
)

// resolve returns the address of a host; its port is a port of the connection
// manager's port space.
func resolve(ctx context.Context, host string) (netip.AddrPort, error) {
	h, err := rdmahost.Parse(host, rdmahost.ServicePort)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if err := h.Resolve(ctx); err != nil {
		return netip.AddrPort{}, err
	}
	return h.AddrPort(), nil
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

// addrPort decodes a struct sockaddr_in or sockaddr_in6.
func addrPort(b []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	if binary.NativeEndian.Uint16(b) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
}
