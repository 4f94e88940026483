package port

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// controlSize is room for two control messages with a number each, UDP_GRO and
// SO_RXQ_OVFL.
const controlSize = 64

// arrivalControl holds the control messages of a received datagram.
type arrivalControl [controlSize]byte

// attach makes c the control buffer of m.
func (c *arrivalControl) attach(m *unix.Msghdr) {
	m.Control = &c[0]
	m.SetControllen(controlSize)
}

// segment returns the segment size of a coalesced datagram, and false if it is
// a single packet.
func (c *arrivalControl) segment(m *unix.Msghdr) (int, bool) {
	size, ok := c.find(m, unix.IPPROTO_UDP, unix.UDP_GRO)
	return int(int32(size)), ok
}

// drops returns the socket's count of overrun datagrams since it was opened,
// modulo 2³², and false if m does not carry it.
func (c *arrivalControl) drops(m *unix.Msghdr) (uint32, bool) {
	return c.find(m, unix.SOL_SOCKET, unix.SO_RXQ_OVFL)
}

// find returns the value of a control message.
func (c *arrivalControl) find(m *unix.Msghdr, level, kind uint32) (uint32, bool) {
	b := c[:min(int(m.Controllen), len(c))]
	header, order := unix.CmsgLen(0), binary.NativeEndian
	for len(b) >= header+4 {
		var n int
		if header == 16 {
			n = int(order.Uint64(b))
		} else {
			n = int(order.Uint32(b))
		}
		if n < header || n > len(b) {
			break
		}
		if order.Uint32(b[header-8:]) == level && order.Uint32(b[header-4:]) == kind && n >= header+4 {
			return order.Uint32(b[header:]), true
		}
		b = b[min(unix.CmsgSpace(n-header), len(b)):]
	}
	return 0, false
}
