package port

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sockname is a socket address in the kernel's form: struct sockaddr_in or
// sockaddr_in6.
type sockname struct {
	bytes [unix.SizeofSockaddrInet6]byte
	size  uint32
}

// Offsets in a sockname; family and scope are in native byte order.
const (
	nameAtFamily = 0
	nameAtPort   = 2
	nameAtIPv4   = 4
	nameAtIPv6   = 8 // after the flow label
	nameAtScope  = 24
)

// nameOf converts an address.
func nameOf(a netip.AddrPort, scope uint32) sockname {
	var s sockname
	be.PutUint16(s.bytes[nameAtPort:], a.Port())
	if a.Addr().Is4() {
		ip := a.Addr().As4()
		binary.NativeEndian.PutUint16(s.bytes[nameAtFamily:], unix.AF_INET)
		copy(s.bytes[nameAtIPv4:], ip[:])
		s.size = unix.SizeofSockaddrInet4
		return s
	}
	ip := a.Addr().As16()
	binary.NativeEndian.PutUint16(s.bytes[nameAtFamily:], unix.AF_INET6)
	copy(s.bytes[nameAtIPv6:], ip[:])
	if a.Addr().IsLinkLocalUnicast() {
		binary.NativeEndian.PutUint32(s.bytes[nameAtScope:], scope)
	}
	s.size = unix.SizeofSockaddrInet6
	return s
}

// addr converts back; a link-local address gets the zone.
func (s *sockname) addr(zone string) netip.AddrPort {
	port := be.Uint16(s.bytes[nameAtPort:])
	if binary.NativeEndian.Uint16(s.bytes[nameAtFamily:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.bytes[nameAtIPv4:])), port)
	}
	a := netip.AddrFrom16([16]byte(s.bytes[nameAtIPv6:]))
	if zone != "" && a.IsLinkLocalUnicast() {
		a = a.WithZone(zone)
	}
	return netip.AddrPortFrom(a, port)
}
