package netbed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sender puts Ethernet frames on the cable as they are, whatever address they
// say that they come from. It is safe for concurrent use.
type Sender struct {
	fd     int
	device int
}

// Sender opens a sender at the device of the host, which ends with the test.
func (h *Host) Sender() *Sender {
	h.t.Helper()
	s := &Sender{}
	err := h.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err == nil {
		s.device, err = h.index()
	}
	if err != nil {
		h.t.Fatalf("open a packet socket: %v", err)
	}
	h.t.Cleanup(func() {
		if err := unix.Close(s.fd); err != nil {
			h.t.Error(err)
		}
	})
	return s
}

// Send sends a frame to the other host.
func (s *Sender) Send(frame []byte) error {
	to := unix.SockaddrLinklayer{Ifindex: s.device}
	for {
		err := unix.Sendto(s.fd, frame, 0, &to)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		default:
			return fmt.Errorf("send a frame of %d bytes: %w", len(frame), err)
		}
	}
}

// Offsets in an Ethernet frame of UDP over IPv4 without options.
const (
	frameAtIP        = 14
	frameAtLength    = frameAtIP + 2
	frameAtProtocol  = frameAtIP + 9
	frameAtIPSum     = frameAtIP + 10
	frameAtUDP       = frameAtIP + 20
	frameAtUDPLength = frameAtUDP + 4
	frameAtChecksum  = frameAtUDP + 6

	// FramePayload is where the payload of the datagram begins.
	FramePayload = frameAtUDP + 8
)

// Forge returns a frame with other payload and the headers of another frame of
// UDP over IPv4, in new memory. It has no UDP checksum.
func Forge(frame, payload []byte) []byte {
	f := append(append(make([]byte, 0, FramePayload+len(payload)), frame[:FramePayload]...), payload...)
	order := binary.BigEndian
	order.PutUint16(f[frameAtLength:], uint16(len(f)-frameAtIP))
	order.PutUint16(f[frameAtUDPLength:], uint16(len(f)-frameAtUDP))
	order.PutUint16(f[frameAtChecksum:], 0)
	order.PutUint16(f[frameAtIPSum:], 0)
	sum := uint32(0)
	for at := frameAtIP; at < frameAtUDP; at += 2 {
		sum += uint32(order.Uint16(f[at:]))
	}
	sum = sum>>16 + sum&0xffff
	order.PutUint16(f[frameAtIPSum:], ^uint16(sum>>16+sum))
	return f
}
