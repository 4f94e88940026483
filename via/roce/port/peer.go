package port

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via/roce/wire"
)

// Peer is a destination: its address and the checksum of packets that go there.
// One goroutine at a time uses it, the one that uses the lane it is sent from.
type Peer struct {
	to   netip.AddrPort
	name sockname   // of to, for ports of sockets
	hop  *neighbour // on the way to it, for ports of frames
	icrc wire.ICRC
}

// newPeer returns the destination of packets from one address to another.
func newPeer(from, to netip.AddrPort) (*Peer, error) {
	to = unmap(to)
	if a := to.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		to = netip.AddrPortFrom(a.WithZone(from.Addr().Zone()), to.Port())
	}
	switch a := to.Addr(); {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || to.Port() == 0:
		return nil, fmt.Errorf("peer %v: not the address of one host and a port", to)
	case a.Is4() != from.Addr().Is4():
		return nil, fmt.Errorf("peer %v: IPv4 and IPv6 do not mix, packets are sent from %v", to, from)
	}
	p := &Peer{to: to}
	p.icrc.Set(from, to)
	return p, nil
}

// Addr returns the address.
func (p *Peer) Addr() netip.AddrPort { return p.to }

// checkLocal refuses what packets cannot be sent from: the source is covered by
// the ICRC, so it is known before the kernel chooses one.
func checkLocal(addr netip.AddrPort) error {
	if a := addr.Addr(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("port %v: not the address of one interface", addr)
	}
	return nil
}

// unmap returns an address whose IPv4 is not mapped to IPv6.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// headers is what IP and UDP add to a packet, bytes.
func headers(a netip.Addr) int {
	if a.Is4() {
		return ip4HeaderSize + udpHeaderSize
	}
	return ip6HeaderSize + udpHeaderSize
}

// Sizes of headers without options, bytes.
const (
	ip4HeaderSize = 20
	ip6HeaderSize = 40
	udpHeaderSize = 8
)

// verifier checks the ICRCs of packets to one address. One goroutine at a time
// uses it.
type verifier struct {
	local netip.AddrPort
	from  netip.AddrPort // that icrc is set to
	icrc  wire.ICRC
}

// intact reports whether the ICRC of an arrival is right.
func (v *verifier) intact(a *Arrival) bool {
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
