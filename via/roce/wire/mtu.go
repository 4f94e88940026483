package wire

// MTU is the code of a path MTU, the largest payload of a packet.
type MTU uint8

// The path MTUs.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// headroom is the part of a link's MTU beside the payload, bytes: an IPv6
// header, a UDP header and the longest headers of a packet with payload, with
// the tag and the ICRC. Linux reserves 80 bytes, and knows no tag; the path
// MTUs differ on links of 4176 to 4187 bytes and the like.
const headroom = ip6Size + udpSize + MaxPacket - MaxPayload

// PathMTU returns the largest path MTU for a link, whose MTU is given in bytes
// of IP packet. It reports false if not even the smallest fits.
func PathMTU(link int) (MTU, bool) {
	for mtu := MTU4096; mtu >= MTU256; mtu-- {
		if mtu.Bytes() <= link-headroom {
			return mtu, true
		}
	}
	return 0, false
}

// IsValid reports whether the code is one of the five.
func (m MTU) IsValid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the path MTU in bytes. The code must be valid.
func (m MTU) Bytes() int { return 128 << m }

// Packets returns the number of packets, and so of PSNs, of a message of length
// bytes: at least one.
func (m MTU) Packets(length int) int {
	return max(1, (length+m.Bytes()-1)>>(m+7))
}
