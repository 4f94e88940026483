package ethernet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Link is an Ethernet link: a file descriptor that reads and writes one
// frame at a time.
type Link struct {
	name   string
	fd     int
	header int // bytes in front of each frame: a virtio_net_hdr, or nothing
	mac    hardwareAddr
	mtu    int // of the interface; 0 if there is none
}

// DatagramLink returns a link whose frames are UDP datagrams between two
// addresses, in the format of QEMU's network backend "dgram".
func DatagramLink(local, remote netip.AddrPort) (*Link, error) {
	what := fmt.Sprintf("frames in datagrams from %v to %v", local, remote)
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = c.Close() }() // the link has a duplicate
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var fd int
	var failure error
	err = raw.Control(func(original uintptr) {
		fd, failure = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0) // it does not block either
	})
	if err = errors.Join(err, failure); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	l := &Link{name: what, fd: fd}
	if err := errors.Join(l.enlarge(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF), l.enlarge(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// socketBuffer is the size of a socket's buffers, in bytes.
const socketBuffer = 4 << 20

// enlarge sets the size of a socket's buffer, beyond the system's limit if
// permitted.
func (l *Link) enlarge(force, ask int) error {
	if unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, force, socketBuffer) == nil {
		return nil
	}
	if err := unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, ask, socketBuffer); err != nil {
		return fmt.Errorf("%s: set a buffer: %w", l.name, err)
	}
	return nil
}

// awaitRoom waits until the link takes another frame, and reports whether it
// does.
func (l *Link) awaitRoom(timeout time.Duration) bool {
	fds := [1]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}
	limit := unix.NsecToTimespec(int64(timeout))
	n, err := unix.Ppoll(fds[:], &limit, nil)
	return err == unix.EINTR || n == 1
}

// InterfaceLink returns a link that shares a network interface with the kernel,
// by a packet socket; that requires CAP_NET_RAW. If the sending kernel leaves
// UDP segmentation to the interface, a veth for instance, it requires Linux
// 6.2.
func InterfaceLink(name string) (*Link, error) {
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
	l := &Link{name: "frames of " + name, fd: fd, mac: hardwareAddr(i.HardwareAddr), mtu: i.MTU}
	if err := l.attach(i.Index); err != nil {
		return nil, errors.Join(fmt.Errorf("frames of %s: %w", name, err), unix.Close(fd))
	}
	return l, nil
}

// attach binds a packet socket to an interface. It receives frames for any
// station and group, because the port may have its own Ethernet address.
func (l *Link) attach(index int) error {
	if err := l.enlarge(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF); err != nil {
		return err
	}
	for _, o := range []struct {
		level, name, value int
		what               string
	}{
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
func TapLink(fd int) (*Link, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("frames of a tap device: %w", err)
	}
	return &Link{name: "frames of a tap device", fd: fd}, nil
}

// Close closes a link that no port owns.
func (l *Link) Close() error {
	if err := unix.Close(l.fd); err != nil {
		return fmt.Errorf("close %s: %w", l.name, err)
	}
	return nil
}

// A buffer has room for the header of any link before the frame. The header is
// zero on send: no segmentation, checksums complete.
const frameOffset = virtioHeaderSize

// The header of a packet socket's frames, virtio_net_hdr.
const (
	virtioAtSegmentation = 1
	virtioAtSegmentSize  = 4
	virtioHeaderSize     = 10

	virtioUDP = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

// write sends the frame that follows the room in b.
func (l *Link) write(b []byte) error {
	_, err := unix.Write(l.fd, b[frameOffset-l.header:])
	return err
}

// read receives a frame into b. It returns the frame, a part of b, and the
// segment size if the frame is a run of UDP packets, else 0.
func (l *Link) read(b []byte) (frame []byte, segment int, err error) {
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
