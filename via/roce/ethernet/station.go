package ethernet

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// station is the IP stack of an address on an Ethernet link: it answers ARP,
// neighbour discovery and ping, and receives UDP packets to its port. Frames
// are untrusted: it checks bounds before it reads a field, and ignores invalid
// frames. One goroutine handles frames; resolving neighbours is safe for
// concurrent use.
type station struct {
	local   netip.AddrPort
	mac     hardwareAddr
	group   hardwareAddr // IPv6: solicited-node group
	started time.Time
	around  neighbourhood

	emit    func(buffer []byte) error // sends the frame after the buffer's room
	deliver func(d delivery)
	scratch []byte // buffer of answers
}

// delivery is a UDP datagram that arrived, or a run of them in one.
type delivery struct {
	from           netip.AddrPort
	payload        []byte
	identification wire.Identification // of the first packet
	segment        int                 // size of all packets but the last; 0 for a single packet
}

func newStation(local netip.AddrPort, mac hardwareAddr, emit func([]byte) error, deliver func(delivery)) *station {
	s := &station{local: local, mac: mac, emit: emit, deliver: deliver, started: time.Now()}
	s.around.all = make(map[netip.Addr]weakNeighbour)
	if local.Addr().Is6() {
		_, s.group = solicitedGroup(local.Addr())
	}
	s.scratch = make([]byte, frameOffset+mostPing)
	return s
}

// mostPing bounds the frame of an answered ping, in bytes.
const mostPing = 10 << 10

// now is the time since the station started, never 0.
func (s *station) now() time.Duration { return time.Since(s.started) + 1 }

// handle handles a frame. segment is the segment size if the frame is a run of
// packets that the sender did not segment, else 0.
func (s *station) handle(frame []byte, segment int) {
	if len(frame) < etherHeaderSize {
		return
	}
	dst, src := hardwareAddr(frame[etherAtDst:]), hardwareAddr(frame[etherAtSrc:])
	if dst != s.mac && !dst.isGroup() || src.isGroup() || src == s.mac {
		return
	}
	b := frame[etherHeaderSize:]
	switch kind := be.Uint16(frame[etherAtKind:]); {
	case s.local.Addr().Is6():
		if kind == etherIPv6 && (dst == s.mac || dst == s.group || dst == allNodes) {
			s.handleIPv6(b, src, segment)
		}
	case kind == etherARP:
		s.handleARP(b)
	case kind == etherIPv4 && dst == s.mac:
		s.handleIPv4(b, src, segment)
	}
}

// allNodes is the Ethernet address of every station with IPv6.
var allNodes = hardwareAddr{0x33, 0x33, 0, 0, 0, 1}

// handleIPv4 handles an IPv4 packet; padding of the frame may follow it.
func (s *station) handleIPv4(b []byte, src hardwareAddr, segment int) {
	if len(b) < ip4HeaderSize || b[ip4AtVersion] != ip4Version || checksum(sum(0, b[:ip4HeaderSize])) != 0 {
		return
	}
	size := int(be.Uint16(b[ip4AtLength:]))
	fragment := be.Uint16(b[ip4AtFragment:])
	if size < ip4HeaderSize || size > len(b) || fragment&ip4FragmentBit != 0 {
		return
	}
	from, to := netip.AddrFrom4([4]byte(b[ip4AtSrc:])), netip.AddrFrom4([4]byte(b[ip4AtDst:]))
	if to != s.local.Addr() || !isHost(from) {
		return
	}
	payload := b[ip4HeaderSize:size]
	switch b[ip4AtProtocol] {
	case unix.IPPROTO_UDP:
		s.handleUDP(payload, delivery{from: netip.AddrPortFrom(from, 0), segment: segment, identification: wire.Identification{
			ID: be.Uint16(b[ip4AtID:]), MayFragment: fragment&ip4DontDivide == 0,
		}})
	case unix.IPPROTO_ICMP:
		if len(payload) >= pingHeaderSize && payload[icmpAtKind] == ping4 && checksum(sum(0, payload)) == 0 {
			s.answerPing(payload, from, src)
		}
	}
}

// handleIPv6 handles an IPv6 packet without extension headers.
func (s *station) handleIPv6(b []byte, src hardwareAddr, segment int) {
	if len(b) < ip6HeaderSize || b[ip6AtVersion]>>4 != ip6Version>>28 {
		return
	}
	size := int(be.Uint16(b[ip6AtLength:]))
	if size > len(b)-ip6HeaderSize {
		return
	}
	from, to := s.zoned([16]byte(b[ip6AtSrc:])), s.zoned([16]byte(b[ip6AtDst:]))
	payload := b[ip6HeaderSize : ip6HeaderSize+size]
	switch b[ip6AtNextHeader] {
	case unix.IPPROTO_UDP:
		if to == s.local.Addr() && isHost(from) {
			s.handleUDP(payload, delivery{from: netip.AddrPortFrom(from, 0), segment: segment})
		}
	case unix.IPPROTO_ICMPV6:
		if checksum(sum(pseudoSum(from, to, unix.IPPROTO_ICMPV6, size), payload)) == 0 {
			s.handleICMPv6(payload, from, to, src, b[ip6AtHopLimit])
		}
	}
}

// zoned adds the port's zone to a link-local address.
func (s *station) zoned(b [16]byte) netip.Addr {
	a := netip.AddrFrom16(b)
	if zone := s.local.Addr().Zone(); zone != "" && a.IsLinkLocalUnicast() {
		return a.WithZone(zone)
	}
	return a
}

// isHost reports whether an address is unicast.
func isHost(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.Is4In6() && a != limitedBroadcast
}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// handleUDP handles a UDP datagram. It ignores the UDP checksum, which may be
// absent or left incomplete for an offload; the ICRC covers more.
func (s *station) handleUDP(b []byte, d delivery) {
	if len(b) < udpHeaderSize || int(be.Uint16(b[udpAtLength:])) != len(b) || be.Uint16(b[udpAtDst:]) != s.local.Port() {
		return
	}
	d.from = netip.AddrPortFrom(d.from.Addr(), be.Uint16(b[udpAtSrc:]))
	d.payload = b[udpHeaderSize:]
	s.deliver(d)
}

// Messages of ICMP, RFC 792 and RFC 4443, and the size of the echo header.
const (
	ping4          = 8
	pong4          = 0
	ping6          = 128
	pong6          = 129
	pingHeaderSize = 8
)

// answerPing sends an echo reply.
func (s *station) answerPing(ping []byte, from netip.Addr, src hardwareAddr) {
	b := s.scratch
	if frameOffset+etherHeaderSize+ip6HeaderSize+len(ping) > len(b) || ping[icmpAtCode] != 0 {
		return
	}
	b = b[:frameOffset+s.headers()+len(ping)]
	pong := b[frameOffset+s.headers():]
	copy(pong, ping)
	be.PutUint16(pong[icmpAtSum:], 0)
	local := s.local.Addr()
	if local.Is4() {
		pong[icmpAtKind] = pong4
		be.PutUint16(pong[icmpAtSum:], checksum(sum(0, pong)))
		putEther(b[frameOffset:], src, s.mac, etherIPv4)
		putIPv4(b[frameOffset+etherHeaderSize:], local, from, unix.IPPROTO_ICMP, len(pong), 0)
	} else {
		pong[icmpAtKind] = pong6
		be.PutUint16(pong[icmpAtSum:], checksum(sum(pseudoSum(local, from, unix.IPPROTO_ICMPV6, len(pong)), pong)))
		putEther(b[frameOffset:], src, s.mac, etherIPv6)
		putIPv6(b[frameOffset+etherHeaderSize:], local, from, unix.IPPROTO_ICMPV6, len(pong), hopLimit)
	}
	_ = s.emit(b)
}

// headers returns the size of the Ethernet and IP headers.
func (s *station) headers() int {
	if s.local.Addr().Is4() {
		return etherHeaderSize + ip4HeaderSize
	}
	return etherHeaderSize + ip6HeaderSize
}
