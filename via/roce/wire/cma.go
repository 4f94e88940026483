package wire

import "net/netip"

// ServiceID identifies a listener of the connection manager.
type ServiceID uint64

// The port spaces of IP services: the high bytes of a service ID; the port is
// the low two.
const (
	serviceTCP  ServiceID = 0x0106_0000
	servicePort ServiceID = 0xffff
)

// TCPService returns the ID of a listener at a port of the TCP port space,
// where rdma_listen puts reliable connections.
func TCPService(port uint16) ServiceID { return serviceTCP | ServiceID(port) }

// TCPPort returns the port of an ID in the TCP port space, and whether it is in
// that space.
func (s ServiceID) TCPPort() (port uint16, ok bool) {
	return uint16(s), s&^servicePort == serviceTCP
}

// CMA is the header that begins the private data of a REQ for an IP service:
// the addresses of the consumers. Unless both addresses are IPv4, or
// IPv4-mapped, they are sent as IPv6.
type CMA struct {
	SrcPort  uint16
	Src, Dst netip.Addr
}

// Offsets of a CMA. An IPv4 address is the last four bytes of its field.
const (
	cmaAtVersion   = 0 // 0
	cmaAtIPVersion = 1 // 0xf0: 4 or 6
	cmaAtSrcPort   = 2
	cmaAtSrc       = 4
	cmaAtDst       = 20

	// CMASize is the length of a CMA, bytes.
	CMASize = 36
)

const (
	cmaVersion = 0
	cmaIPv4    = 4 // in the high bits of IPVersion
	cmaIPv6    = 6
	cmaBefore4 = 12 // bytes of an address's field before an IPv4 address
)

// Encode writes the header to b and returns [CMASize]. It panics if b is
// shorter or an address is missing.
func (h *CMA) Encode(b []byte) int {
	b = b[:CMASize]
	clear(b)
	b[cmaAtVersion] = cmaVersion
	be.PutUint16(b[cmaAtSrcPort:], h.SrcPort)
	if src, dst := h.Src.Unmap(), h.Dst.Unmap(); src.Is4() && dst.Is4() {
		b[cmaAtIPVersion] = cmaIPv4 << 4
		from, to := src.As4(), dst.As4()
		copy(b[cmaAtSrc+cmaBefore4:], from[:])
		copy(b[cmaAtDst+cmaBefore4:], to[:])
	} else {
		b[cmaAtIPVersion] = cmaIPv6 << 4
		from, to := src.As16(), dst.As16()
		copy(b[cmaAtSrc:], from[:])
		copy(b[cmaAtDst:], to[:])
	}
	return CMASize
}

// Decode reads the header from b, which is private data of any length.
func (h *CMA) Decode(b []byte) Refusal {
	if len(b) < CMASize || b[cmaAtVersion] != cmaVersion {
		return RefusedPrivate
	}
	src, dst := b[cmaAtSrc:cmaAtDst], b[cmaAtDst:CMASize]
	switch b[cmaAtIPVersion] >> 4 {
	case cmaIPv4:
		h.Src = netip.AddrFrom4([4]byte(src[cmaBefore4:]))
		h.Dst = netip.AddrFrom4([4]byte(dst[cmaBefore4:]))
	case cmaIPv6:
		h.Src = netip.AddrFrom16([16]byte(src))
		h.Dst = netip.AddrFrom16([16]byte(dst))
	default:
		return RefusedPrivate
	}
	h.SrcPort = be.Uint16(b[cmaAtSrcPort:])
	return Accepted
}
