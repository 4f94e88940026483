package netbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Datagram is a UDP datagram in an Ethernet frame. Its payload is in the frame.
type Datagram struct {
	From, To netip.AddrPort

	// Of IPv4; IPv6 has neither.
	ID          uint16
	MayFragment bool

	Payload []byte
}

var _ gopacket.DecodeFeedback = (*truncation)(nil)

// truncation notes that a layer is longer than what there is of it.
type truncation bool

// SetTruncated implements [gopacket.DecodeFeedback].
func (t *truncation) SetTruncated() { *t = true }

// ParseDatagram takes a frame apart. It refuses what is no whole UDP datagram
// over IPv4 or IPv6 without extension headers.
func ParseDatagram(frame []byte) (Datagram, error) {
	var ethernet layers.Ethernet
	var cut truncation
	if err := ethernet.DecodeFromBytes(frame, &cut); err != nil {
		return Datagram{}, err
	}
	var d Datagram
	var from, to net.IP
	var protocol layers.IPProtocol
	var inside []byte
	switch ethernet.EthernetType {
	case layers.EthernetTypeIPv4:
		var ip layers.IPv4
		if err := ip.DecodeFromBytes(ethernet.Payload, &cut); err != nil {
			return Datagram{}, err
		}
		if ip.Version != 4 || ip.IHL != 5 || ip.Flags&layers.IPv4MoreFragments != 0 || ip.FragOffset != 0 {
			return Datagram{}, errors.New("the IPv4 packet is another version, a fragment, or has options")
		}
		d.ID, d.MayFragment = ip.Id, ip.Flags&layers.IPv4DontFragment == 0
		from, to, protocol, inside = ip.SrcIP, ip.DstIP, ip.Protocol, ip.Payload
	case layers.EthernetTypeIPv6:
		var ip layers.IPv6
		if err := ip.DecodeFromBytes(ethernet.Payload, &cut); err != nil {
			return Datagram{}, err
		}
		if ip.Version != 6 {
			return Datagram{}, fmt.Errorf("an IPv6 packet of version %d", ip.Version)
		}
		from, to, protocol, inside = ip.SrcIP, ip.DstIP, ip.NextHeader, ip.Payload
	default:
		return Datagram{}, fmt.Errorf("type %v is not IP", ethernet.EthernetType)
	}
	if protocol != layers.IPProtocolUDP {
		return Datagram{}, fmt.Errorf("protocol %v is not UDP", protocol)
	}
	if err := d.decode(inside, from, to, &cut); err != nil {
		return Datagram{}, err
	}
	return d, nil
}

// decode decodes the UDP part, all of which is in an IP packet.
func (d *Datagram) decode(b []byte, from, to net.IP, cut *truncation) error {
	var udp layers.UDP
	if err := udp.DecodeFromBytes(b, cut); err != nil {
		return err
	}
	if *cut || int(udp.Length) != len(b) {
		return fmt.Errorf("a UDP datagram of %d bytes in %d", udp.Length, len(b))
	}
	source, _ := netip.AddrFromSlice(from) // of 4 or 16 bytes
	target, _ := netip.AddrFromSlice(to)
	d.From, d.To = netip.AddrPortFrom(source, uint16(udp.SrcPort)), netip.AddrPortFrom(target, uint16(udp.DstPort))
	d.Payload = udp.Payload
	return nil
}
