package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// ICRC computes the invariant checksum of packets between two UDP endpoints: a
// CRC-32 over all that no router changes, from the IP header on. It holds the
// masked headers, which a UDP socket does not show, as scratch memory, so one
// goroutine at a time uses it. The zero ICRC must be Set before use.
//
// The scratch is in the value because hash/crc32 lets its argument escape: an
// array on the stack would be an allocation for each packet. It has 64 bytes
// because vectors take 11 ns for these; the 40 bytes of IPv4 would take 18 ns
// and the 60 of IPv6 21.
type ICRC struct {
	masked [maskedSize]byte // zeros, then IP, UDP and BTH
	seed   uint32           // checksum before the zeros
	isIPv4 bool
}

// Identification holds the words of an IPv4 header that the ICRC covers and a
// UDP socket does not show. The zero value is what Linux sends for a datagram
// of an unconnected socket that discovers the path MTU. Segment i of a
// segmented send (UDP_SEGMENT) has ID i. IPv6 ignores it.
type Identification struct {
	ID          uint16
	MayFragment bool // DF is clear
}

// Layout of the masked headers: they end where the scratch does.
const (
	maskedAtIPv4 = maskedAtUDP - ip4Size
	maskedAtIPv6 = maskedAtUDP - ip6Size
	maskedAtUDP  = maskedAtBTH - udpSize
	maskedAtBTH  = maskedSize - BTHSize
	maskedSize   = 64
)

// Offsets of the fields that are not masked, in the headers around a packet.
const (
	ip4AtVersion  = 0
	ip4AtLength   = 2
	ip4AtID       = 4
	ip4AtFragment = 6
	ip4AtProtocol = 9
	ip4AtSrc      = 12
	ip4AtDst      = 16
	ip4Size       = 20

	ip6AtVersion    = 0
	ip6AtLength     = 4
	ip6AtNextHeader = 6
	ip6AtSrc        = 8
	ip6AtDst        = 24
	ip6Size         = 40

	udpAtSrc    = 0
	udpAtDst    = 2
	udpAtLength = 4
	udpSize     = 8
)

const (
	masked       = 0xff
	ip4Version   = 0x45 // and a header of five words
	ip6Version   = 0x6f // the low bits are of the traffic class, so masked
	protocolUDP  = 17
	dontFragment = 0x40 // in the high byte of Fragment
)

// The initial checksums. Eight bytes of ones stand for the local routing header
// that an InfiniBand packet has in place of Ethernet's; the seed compensates
// for the zeros of unused scratch.
var (
	icrcSeed     = crc32.ChecksumIEEE([]byte{masked, masked, masked, masked, masked, masked, masked, masked})
	icrcSeedIPv4 = ^multiply(^icrcSeed, inverse[maskedAtIPv4/4])
	icrcSeedIPv6 = ^multiply(^icrcSeed, inverse[maskedAtIPv6/4])
)

// Set makes c the checksum of packets from src to dst, both IPv4 or both IPv6.
// An IPv4 address that is mapped to IPv6 is IPv4.
func (c *ICRC) Set(src, dst netip.AddrPort) {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	c.isIPv4 = from.Is4()
	if c.isIPv4 {
		c.seed = icrcSeedIPv4
		ip := c.blank(maskedAtIPv4)
		a, b := from.As4(), to.As4()
		ip[ip4AtVersion] = ip4Version
		ip[ip4AtProtocol] = protocolUDP
		copy(ip[ip4AtSrc:], a[:])
		copy(ip[ip4AtDst:], b[:])
	} else {
		c.seed = icrcSeedIPv6
		ip := c.blank(maskedAtIPv6)
		a, b := from.As16(), to.As16()
		ip[ip6AtVersion] = ip6Version
		ip[ip6AtNextHeader] = protocolUDP
		copy(ip[ip6AtSrc:], a[:])
		copy(ip[ip6AtDst:], b[:])
	}
	be.PutUint16(c.masked[maskedAtUDP+udpAtSrc:], src.Port())
	be.PutUint16(c.masked[maskedAtUDP+udpAtDst:], dst.Port())
}

// blank masks the scratch from an offset on, clears the bytes before it, and
// returns it.
func (c *ICRC) blank(offset int) []byte {
	clear(c.masked[:offset])
	for i := offset; i < maskedSize; i++ {
		c.masked[i] = masked
	}
	return c.masked[offset:]
}

// IsIPv4 reports whether c was set to IPv4 addresses.
func (c *ICRC) IsIPv4() bool { return c.isIPv4 }

// Seal writes the pad and the ICRC to trailer and returns their length, 4 to 7
// bytes. header is the result of [Packet.Put]; the payload follows in order. It
// panics if trailer is too short.
func (c *ICRC) Seal(trailer []byte, id Identification, header []byte, payload ...[]byte) int {
	n := 0
	for _, part := range payload {
		n += len(part)
	}
	pad := -n & 3
	clear(trailer[:pad])
	c.mask(id, len(header)+n+pad+ICRCSize, header)
	rest := header[BTHSize:]
	if len(rest) == 0 && len(payload) > 0 {
		rest, payload = payload[0], payload[1:]
	}
	crc := resume(c.seed, &c.masked, rest)
	for _, part := range payload {
		crc = extend(crc, part)
	}
	crc = extend(crc, trailer[:pad])
	binary.LittleEndian.PutUint32(trailer[pad:], crc)
	return pad + ICRCSize
}

// Verify reports whether the ICRC of the packet b is right; b is the whole
// payload of a datagram that was sent with id. A packet without room for an
// ICRC fails.
func (c *ICRC) Verify(b []byte, id Identification) bool {
	return len(b) >= MinPacket && c.difference(b, id) == 0
}

// difference returns the xor of the ICRC of b and the right one.
func (c *ICRC) difference(b []byte, id Identification) uint32 {
	end := len(b) - ICRCSize
	c.mask(id, len(b), b)
	return resume(c.seed, &c.masked, b[BTHSize:end]) ^ binary.LittleEndian.Uint32(b[end:])
}

// mask completes the masked headers for a packet of size bytes that begins with
// b.
func (c *ICRC) mask(id Identification, size int, b []byte) {
	if c.isIPv4 {
		ip := c.masked[maskedAtIPv4:]
		be.PutUint16(ip[ip4AtLength:], uint16(ip4Size+udpSize+size))
		be.PutUint16(ip[ip4AtID:], id.ID)
		ip[ip4AtFragment] = bit(!id.MayFragment, dontFragment)
		ip[ip4AtFragment+1] = 0
	} else {
		be.PutUint16(c.masked[maskedAtIPv6+ip6AtLength:], uint16(udpSize+size))
	}
	be.PutUint16(c.masked[maskedAtUDP+udpAtLength:], uint16(udpSize+size))
	bth := c.masked[maskedAtBTH:]
	copy(bth, b[:BTHSize])
	bth[bthAtCongestion] = masked
}
