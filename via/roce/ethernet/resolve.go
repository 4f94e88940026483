package ethernet

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Address resolution: a station solicits its neighbours' Ethernet addresses and
// answers their solicitations.

// ask sends an ARP request or neighbour solicitation.
func (s *station) ask(n *neighbour) {
	if s.local.Addr().Is4() {
		b := make([]byte, frameOffset+etherHeaderSize+arpSize)
		putEther(b[frameOffset:], broadcast, s.mac, etherARP)
		putARP(b[frameOffset+etherHeaderSize:], arpRequest, s.mac, s.local.Addr(), hardwareAddr{}, n.addr)
		_ = s.emit(b)
		return
	}
	group, mac := solicitedGroup(n.addr)
	s.sendND(make([]byte, frameOffset+etherHeaderSize+ip6HeaderSize+ndSize), mac, group, ndSolicitation, 0, n.addr, ndSourceMAC)
}

// askAgain repeats the requests for neighbours with waiting frames, and reports
// whether there are any.
func (s *station) askAgain() bool {
	now := s.now()
	awaited := s.around.awaited(now)
	for _, n := range awaited {
		if n.isDue(now) {
			s.ask(n)
		}
	}
	return len(awaited) > 0
}

// sendND sends a message of neighbour discovery in a buffer.
func (s *station) sendND(b []byte, mac hardwareAddr, to netip.Addr, kind, flags byte, target netip.Addr, option byte) {
	frame := b[frameOffset : frameOffset+etherHeaderSize+ip6HeaderSize+ndSize]
	local := s.local.Addr()
	putEther(frame, mac, s.mac, etherIPv6)
	putIPv6(frame[etherHeaderSize:], local, to, unix.IPPROTO_ICMPV6, ndSize, ndHopLimit)
	putND(frame[etherHeaderSize+ip6HeaderSize:], kind, flags, local, to, target, option, s.mac)
	_ = s.emit(b[:frameOffset+len(frame)])
}

// learn sets the Ethernet address of a neighbour, if the neighbourhood has it,
// and sends its waiting frames.
func (s *station) learn(a netip.Addr, mac hardwareAddr) {
	n := s.around.find(a)
	if n == nil || mac.isGroup() || mac == s.mac {
		return
	}
	n.learn(mac, s.now(), s.emit)
}

// handleARP handles an ARP packet.
func (s *station) handleARP(b []byte) {
	if len(b) < arpSize || be.Uint64(b[arpAtFormat:])>>16 != arpFormat {
		return
	}
	mac, from := hardwareAddr(b[arpAtSrcMAC:]), netip.AddrFrom4([4]byte(b[arpAtSrc:]))
	if from == s.local.Addr() {
		return // an address conflict, or this port's own frame reflected
	}
	s.learn(from, mac)
	isAsked := be.Uint16(b[arpAtOperation:]) == arpRequest && netip.AddrFrom4([4]byte(b[arpAtDst:])) == s.local.Addr()
	if !isAsked || mac.isGroup() {
		return
	}
	answer := s.scratch[:frameOffset+etherHeaderSize+arpSize]
	putEther(answer[frameOffset:], mac, s.mac, etherARP)
	putARP(answer[frameOffset+etherHeaderSize:], arpReply, s.mac, s.local.Addr(), mac, from)
	_ = s.emit(answer)
}

// handleICMPv6 handles an ICMPv6 message with a valid checksum.
func (s *station) handleICMPv6(b []byte, from, to netip.Addr, src hardwareAddr, hops byte) {
	if len(b) < pingHeaderSize || b[icmpAtCode] != 0 {
		return
	}
	isND := hops == ndHopLimit && len(b) >= ndAtOptions
	switch kind := b[icmpAtKind]; {
	case kind == ping6 && to == s.local.Addr() && isHost(from):
		s.answerPing(b, from, src)
	case kind == ndAdvertisement && isND:
		if mac, ok := ndOption(b[ndAtOptions:], ndTargetMAC); ok {
			s.learn(s.zoned([16]byte(b[ndAtTarget:])), mac)
		}
	case kind == ndSolicitation && isND && s.zoned([16]byte(b[ndAtTarget:])) == s.local.Addr():
		s.answerSolicitation(b, from, src)
	}
}

// answerSolicitation sends a neighbour advertisement: to the sender or, for
// duplicate address detection, to all nodes.
func (s *station) answerSolicitation(b []byte, from netip.Addr, src hardwareAddr) {
	flags, mac := byte(ndSolicited|ndOverride), src
	if isHost(from) {
		if m, ok := ndOption(b[ndAtOptions:], ndSourceMAC); ok {
			mac = m
			s.learn(from, m)
		}
	} else {
		flags, from, mac = ndOverride, netip.IPv6LinkLocalAllNodes(), allNodes
	}
	s.sendND(s.scratch, mac, from, ndAdvertisement, flags, s.local.Addr(), ndTargetMAC)
}
