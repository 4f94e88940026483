package netbed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// The format of pcap-savefile(5).
const (
	pcapMicroseconds = 0xa1b2c3d4 // magic number
	pcapNanoseconds  = 0xa1b23c4d
	pcapHeader       = 24 // bytes
	pcapRecord       = 16 // header of a packet
	pcapEthernet     = 1  // link type
	pcapLongest      = 1 << 18
)

// Frames reads the Ethernet frames of a capture. Each one is new memory.
func Frames(path string) ([][]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	frames, err := frames(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return frames, nil
}

func frames(b []byte) ([][]byte, error) {
	if len(b) < pcapHeader {
		return nil, io.ErrUnexpectedEOF
	}
	var order binary.ByteOrder = binary.LittleEndian
	if m := order.Uint32(b); m != pcapMicroseconds && m != pcapNanoseconds {
		order = binary.BigEndian
	}
	if m := order.Uint32(b); m != pcapMicroseconds && m != pcapNanoseconds {
		return nil, errors.New("this is no capture")
	}
	if link := order.Uint32(b[20:]); link != pcapEthernet {
		return nil, fmt.Errorf("link type %d is not Ethernet", link)
	}
	var all [][]byte
	for b = b[pcapHeader:]; len(b) > 0; {
		if len(b) < pcapRecord {
			return nil, io.ErrUnexpectedEOF
		}
		kept, length := order.Uint32(b[8:]), order.Uint32(b[12:])
		b = b[pcapRecord:]
		switch {
		case kept > pcapLongest:
			return nil, fmt.Errorf("a frame of %d bytes", kept)
		case int(kept) > len(b):
			return nil, io.ErrUnexpectedEOF
		case kept != length:
			return nil, fmt.Errorf("%d bytes of a frame of %d were captured", kept, length)
		}
		all = append(all, append([]byte(nil), b[:kept]...))
		b = b[kept:]
	}
	return all, nil
}

// Datagram is a UDP datagram in an Ethernet frame. Its payload is in the frame.
type Datagram struct {
	IP      []byte // the whole packet, from the IP header on
	UDP     []byte // from the UDP header on
	Payload []byte
}

// ParseDatagram takes a frame apart. It refuses what is no whole UDP datagram
// over IPv4 or IPv6 without extension headers.
func ParseDatagram(frame []byte) (Datagram, error) {
	const ethernet, ipv4, ipv6, udp = 14, 20, 40, 8
	if len(frame) < ethernet {
		return Datagram{}, io.ErrUnexpectedEOF
	}
	var d Datagram
	d.IP = frame[ethernet:]
	var total int
	var protocol byte
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == 0x0800 && len(d.IP) >= ipv4 && d.IP[0] == 0x45:
		total, protocol = int(binary.BigEndian.Uint16(d.IP[2:])), d.IP[9]
		if fragment := binary.BigEndian.Uint16(d.IP[6:]) & 0x3fff; fragment != 0 {
			return Datagram{}, fmt.Errorf("a fragment: %#x", fragment)
		}
		d.UDP = d.IP[ipv4:]
	case kind == 0x86dd && len(d.IP) >= ipv6 && d.IP[0]>>4 == 6:
		total, protocol = ipv6+int(binary.BigEndian.Uint16(d.IP[4:])), d.IP[6]
		d.UDP = d.IP[ipv6:]
	default:
		return Datagram{}, fmt.Errorf("%d bytes of type %#x are no IP packet without options", len(frame), kind)
	}
	switch {
	case protocol != 17:
		return Datagram{}, fmt.Errorf("protocol %d is not UDP", protocol)
	case total > len(d.IP) || total < len(d.IP)-len(d.UDP)+udp:
		return Datagram{}, fmt.Errorf("an IP packet of %d bytes in %d", total, len(d.IP))
	}
	d.UDP = d.UDP[:total-(len(d.IP)-len(d.UDP))] // short frames are padded
	d.IP = d.IP[:total]
	if n := int(binary.BigEndian.Uint16(d.UDP[4:])); n != len(d.UDP) {
		return Datagram{}, fmt.Errorf("a UDP datagram of %d bytes in %d", n, len(d.UDP))
	}
	d.Payload = d.UDP[udp:]
	return d, nil
}
