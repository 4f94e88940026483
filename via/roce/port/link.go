package port

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// FrameLink is where Ethernet frames come from and go to: a file descriptor that
// reads and writes one at a time.
type FrameLink struct {
	name   string
	fd     int
	header int // bytes in front of each frame: a virtio_net_hdr, or nothing
	mac    hardwareAddr
	mtu    int // of the interface; 0 if there is none
}

// DatagramLink returns a link whose frames are UDP datagrams between two
// addresses, as the network backend "dgram" of QEMU has them.
func DatagramLink(local, remote netip.AddrPort) (*FrameLink, error) {
	local, remote = unmap(local), unmap(remote)
	what := fmt.Sprintf("frames in datagrams from %v to %v", local, remote)
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	scope, err := scopeOf(local.Addr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for _, step := range []func() error{
		func() error { return enlarge(fd, defaultBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF) },
		func() error { return enlarge(fd, defaultBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF) },
		func() error { return unix.Bind(fd, sockaddr(local, scope)) },
		func() error { return unix.Connect(fd, sockaddr(remote, scope)) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", what, err), unix.Close(fd))
		}
	}
	return &FrameLink{name: what, fd: fd}, nil
}

// InterfaceLink returns a link that shares a network interface with the kernel,
// by a packet socket; that takes CAP_NET_RAW. Where the sender is a kernel that
// leaves the segmentation of UDP to the interface, a veth for instance, it takes
// Linux 6.2.
func InterfaceLink(name string) (*FrameLink, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("frames of %s: %w", name, err)
	}
	if len(i.HardwareAddr) != len(hardwareAddr{}) {
		return nil, fmt.Errorf("frames of %s: not an Ethernet interface", name)
	}
	// Protocol 0 receives nothing until the socket is bound to the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("frames of %s: open a packet socket: %w", name, err)
	}
	l := &FrameLink{name: "frames of " + name, fd: fd, mac: hardwareAddr(i.HardwareAddr), mtu: i.MTU}
	if err := l.attach(i.Index); err != nil {
		return nil, errors.Join(fmt.Errorf("frames of %s: %w", name, err), unix.Close(fd))
	}
	return l, nil
}

// attach binds a packet socket to an interface. It receives frames for any
// station, as the port has an address of its own, if it likes, and groups.
func (l *FrameLink) attach(index int) error {
	if err := enlarge(l.fd, defaultBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("set the receive buffer: %w", err)
	}
	for _, o := range []option{
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1, "receive nothing that this host sends"},
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1, "receive the size of segments"},
	} {
		if err := unix.SetsockoptInt(l.fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	l.header = virtioHeaderSize
	all := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(l.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all); err != nil {
		return fmt.Errorf("receive all frames: %w", err)
	}
	every := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network order
	if err := unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: index}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// TapLink returns a link to the kernel through a tap device without packet
// information (IFF_TAP, IFF_NO_PI and not IFF_VNET_HDR). The link owns fd.
func TapLink(fd int) (*FrameLink, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("frames of a tap device: %w", err)
	}
	return &FrameLink{name: "frames of a tap device", fd: fd}, nil
}

// Close closes a link that no port owns.
func (l *FrameLink) Close() error {
	if err := unix.Close(l.fd); err != nil {
		return fmt.Errorf("close %s: %w", l.name, err)
	}
	return nil
}

// Frames lie in buffers behind room for the header of any link; it is zeros when
// they are sent: nothing to segment, checksums complete.
const frameOffset = virtioHeaderSize

// The header of a packet socket's frames, virtio_net_hdr.
const (
	virtioAtSegmentation = 1
	virtioAtSegmentSize  = 4
	virtioHeaderSize     = 10

	virtioUDP = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

// write sends the frame that b has behind its room.
func (l *FrameLink) write(b []byte) error {
	_, err := unix.Write(l.fd, b[frameOffset-l.header:])
	return err
}

// read receives a frame to b, which it returns the part of, and the size of the
// segments that a run of UDP packets is to be cut into; 0 if it is none.
func (l *FrameLink) read(b []byte) (frame []byte, segment int, err error) {
	n, err := unix.Read(l.fd, b)
	if err != nil {
		return nil, 0, err
	}
	if n < l.header {
		return nil, 0, nil
	}
	if l.header > 0 && b[virtioAtSegmentation] == virtioUDP {
		segment = int(binary.NativeEndian.Uint16(b[virtioAtSegmentSize:]))
	}
	return b[l.header:n], segment, nil
}
