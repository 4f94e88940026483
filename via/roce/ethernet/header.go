package ethernet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"
)

// be is the byte order of headers.
var be = binary.BigEndian

// Sizes of headers without options, bytes.
const (
	ip4HeaderSize = 20
	ip6HeaderSize = 40
	udpHeaderSize = 8
)

// hardwareAddr is an Ethernet address.
type hardwareAddr [6]byte

var broadcast = hardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// isGroup reports whether a is the address of more than one station.
func (a hardwareAddr) isGroup() bool { return a[0]&1 != 0 }

// The Ethernet header.
const (
	etherAtDst      = 0
	etherAtSrc      = 6
	etherAtKind     = 12
	etherHeaderSize = 14

	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

func putEther(b []byte, dst, src hardwareAddr, kind uint16) {
	copy(b[etherAtDst:], dst[:])
	copy(b[etherAtSrc:], src[:])
	be.PutUint16(b[etherAtKind:], kind)
}

// The IPv4 header, RFC 791.
const (
	ip4AtVersion  = 0
	ip4AtService  = 1
	ip4AtLength   = 2
	ip4AtID       = 4
	ip4AtFragment = 6
	ip4AtTTL      = 8
	ip4AtProtocol = 9
	ip4AtSum      = 10
	ip4AtSrc      = 12
	ip4AtDst      = 16

	ip4Version     = 0x45 // header of five words
	ip4DontDivide  = 0x4000
	ip4FragmentBit = 0x3fff // more fragments, or an offset
)

// putIPv4 writes the header in front of a payload, with DF.
func putIPv4(b []byte, src, dst netip.Addr, protocol byte, payload int, id uint16) {
	b = b[:ip4HeaderSize]
	b[ip4AtVersion] = ip4Version
	b[ip4AtService] = 0
	be.PutUint16(b[ip4AtLength:], uint16(ip4HeaderSize+payload))
	be.PutUint16(b[ip4AtID:], id)
	be.PutUint16(b[ip4AtFragment:], ip4DontDivide)
	b[ip4AtTTL] = hopLimit
	b[ip4AtProtocol] = protocol
	be.PutUint16(b[ip4AtSum:], 0)
	from, to := src.As4(), dst.As4()
	copy(b[ip4AtSrc:], from[:])
	copy(b[ip4AtDst:], to[:])
	be.PutUint16(b[ip4AtSum:], checksum(sum(0, b)))
}

// hopLimit is the TTL or hop limit of packets.
const hopLimit = 64

// The IPv6 header, RFC 8200.
const (
	ip6AtVersion    = 0
	ip6AtLength     = 4
	ip6AtNextHeader = 6
	ip6AtHopLimit   = 7
	ip6AtSrc        = 8
	ip6AtDst        = 24

	ip6Version = 6 << 28
)

// putIPv6 writes the header in front of a payload.
func putIPv6(b []byte, src, dst netip.Addr, next byte, payload int, hops byte) {
	b = b[:ip6HeaderSize]
	be.PutUint32(b[ip6AtVersion:], ip6Version)
	be.PutUint16(b[ip6AtLength:], uint16(payload))
	b[ip6AtNextHeader] = next
	b[ip6AtHopLimit] = hops
	from, to := src.As16(), dst.As16()
	copy(b[ip6AtSrc:], from[:])
	copy(b[ip6AtDst:], to[:])
}

// The UDP header, RFC 768.
const (
	udpAtSrc    = 0
	udpAtDst    = 2
	udpAtLength = 4
	udpAtSum    = 6
)

// putUDP writes the header in front of the payload that b ends with.
func putUDP(b []byte, src, dst netip.AddrPort) {
	be.PutUint16(b[udpAtSrc:], src.Port())
	be.PutUint16(b[udpAtDst:], dst.Port())
	be.PutUint16(b[udpAtLength:], uint16(len(b)))
	be.PutUint16(b[udpAtSum:], 0)
	s := checksum(sum(pseudoSum(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, len(b)), b))
	if s == 0 {
		s = 0xffff // 0 means no checksum
	}
	be.PutUint16(b[udpAtSum:], s)
}

// pseudoSum returns the sum of the pseudo-header.
func pseudoSum(src, dst netip.Addr, protocol byte, size int) uint64 {
	total := uint64(protocol) + uint64(size)
	if src.Is4() {
		from, to := src.As4(), dst.As4()
		return sum(sum(total, from[:]), to[:])
	}
	from, to := src.As16(), dst.As16()
	return sum(sum(total, from[:]), to[:])
}

// sum adds the 16-bit words of b in ones' complement; it adds words of 64 bits,
// which checksum folds (RFC 1071). Only the last part may have an odd length.
func sum(total uint64, b []byte) uint64 {
	var carry uint64
	for ; len(b) >= 8; b = b[8:] {
		total, carry = bits.Add64(total, be.Uint64(b), carry)
	}
	var rest [8]byte
	copy(rest[:], b)
	total, carry = bits.Add64(total, be.Uint64(rest[:]), carry)
	return total + carry
}

// checksum returns the complement of a sum.
func checksum(total uint64) uint16 {
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}
