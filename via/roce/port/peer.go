package port

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Peer is a destination of packets. Only the port that returned it sends to it,
// and one goroutine at a time uses it: the user of the sending shard.
type Peer interface {
	// Addr returns the address.
	Addr() netip.AddrPort
}

// Destination is what the peers of all ports have in common: the address, and
// the state of the ICRC of packets to it. A port adds what it needs to send.
type Destination struct {
	to   netip.AddrPort
	icrc wire.ICRC
}

// NewDestination returns the destination of packets from one address to
// another. It refuses what is not the address of one host.
func NewDestination(from, to netip.AddrPort) (Destination, error) {
	to = unmap(to)
	if a := to.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		to = netip.AddrPortFrom(a.WithZone(from.Addr().Zone()), to.Port())
	}
	switch a := to.Addr(); {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || to.Port() == 0:
		return Destination{}, fmt.Errorf("peer %v: not a unicast address and a port", to)
	case a.Is4() != from.Addr().Is4():
		return Destination{}, fmt.Errorf("peer %v: the address family differs from that of the port, %v", to, from)
	}
	d := Destination{to: to}
	d.icrc.Set(from, to)
	return d, nil
}

// Addr implements [Peer].
func (d *Destination) Addr() netip.AddrPort { return d.to }

// Seal writes the ICRC of a packet, unless the packet is sealed.
func (d *Destination) Seal(p *rc.Packet, id wire.Identification) {
	if !p.Sealed {
		d.icrc.Seal(p.Trailer, id, p.Header, p.Payload...)
	}
}

// Gather copies a packet to b and returns its length.
func Gather(b []byte, p *rc.Packet) int {
	n := copy(b, p.Header)
	for _, s := range p.Payload {
		n += copy(b[n:], s)
	}
	return n + copy(b[n:], p.Trailer)
}

// Source returns an address as that of a port, an IPv4-mapped one as IPv4. It
// refuses an address that is not one source address: the ICRC covers the
// source, so the kernel must not choose it.
func Source(addr netip.AddrPort) (netip.AddrPort, error) {
	if a := addr.Addr(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return addr, fmt.Errorf("port %v: not the address of an interface", addr)
	}
	return unmap(addr), nil
}

// unmap converts an IPv4-mapped IPv6 address to IPv4.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Headers returns the size of the IP and UDP headers before a packet to an
// address, in bytes. The headers have no options.
func Headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// icrcChecker checks the ICRCs of packets to one address. One goroutine at a
// time uses it.
type icrcChecker struct {
	local netip.AddrPort
	from  netip.AddrPort // source that icrc is set to
	icrc  wire.ICRC
}

// intact reports whether the ICRC of an arrival is right.
func (v *icrcChecker) intact(a *Arrival) bool {
	if a.From != v.from {
		v.from = a.From
		v.icrc.Set(a.From, v.local)
	}
	if a.known {
		return v.icrc.Verify(a.Bytes, a.identification)
	}
	_, ok := v.icrc.Solve(a.Bytes, a.identification.ID)
	return ok
}

// be is the byte order of headers.
var be = binary.BigEndian
