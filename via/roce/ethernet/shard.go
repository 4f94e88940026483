package ethernet

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// frameShard is a shard of a framePort. Packets go out in this order:
//
//  1. Send asks for the neighbour's address again, if that is old
//  2. frame seals a packet, and copies it behind its headers to the buffer of
//     the shard; the memory of the works is free again
//  3. sendFrame holds a copy while the neighbour's address is unknown, and else
//     writes the frame to the link
//  4. wait waits for room in the link, once for each Send
type frameShard struct {
	*port.QueuedShard
	port *framePort
	id   uint16 // IP ID of the next packet

	// buffer is the frame to send, after room for the header of the link.
	buffer [frameOffset + etherHeaderSize + ip6HeaderSize + udpHeaderSize + wire.MaxPacket]byte
}

func newFrameShard(p *framePort, l *port.QueuedShard) *frameShard {
	return &frameShard{QueuedShard: l, port: p}
}

func (s *frameShard) Send(spans []port.Span) error {
	if s.IsClosed() {
		return net.ErrClosed
	}
	var deadline time.Time // end of waits for room; zero before the first
	var failure error
	now := s.port.now()
	for i := range spans {
		to := spans[i].To.(*peer)
		if to.hop.isDue(now) {
			s.port.ask(to.hop)
		}
		for k := range spans[i].Packets {
			p := &spans[i].Packets[k]
			var err error
			if p.Size+port.Headers(to.Addr().Addr()) > min(s.port.options.MTU, len(s.buffer)-frameOffset-etherHeaderSize) {
				err = unix.EMSGSIZE
			} else {
				err = s.sendFrame(s.frame(to, p), to.hop, &deadline)
			}
			if err == nil {
				s.CountSent(1, 1, p.Size)
				continue
			}
			s.CountDropped(1)
			if failure == nil && !errors.Is(err, unix.EAGAIN) {
				failure = fmt.Errorf("send to %v: %w", to.Addr(), err)
			}
		}
	}
	return failure
}

// frame seals a packet and builds its frame, without the Ethernet address of
// the destination.
func (s *frameShard) frame(to *peer, p *rc.Packet) []byte {
	st := s.port.station
	size := udpHeaderSize + p.Size
	head := frameOffset + st.headers()
	b := s.buffer[:head+size]
	to.Seal(p, wire.Identification{ID: s.id})
	port.Gather(b[head+udpHeaderSize:], p)
	from, dst := st.local, to.Addr()
	putUDP(b[head:], from, dst)
	kind := uint16(etherIPv6)
	if ip := b[frameOffset+etherHeaderSize:]; from.Addr().Is4() {
		kind = etherIPv4
		putIPv4(ip, from.Addr(), dst.Addr(), unix.IPPROTO_UDP, size, s.id)
		s.id++
	} else {
		putIPv6(ip, from.Addr(), dst.Addr(), unix.IPPROTO_UDP, size, hopLimit)
	}
	putEther(b[frameOffset:], hardwareAddr{}, st.mac, kind)
	return b
}

// sendFrame sends a frame to a neighbour, or holds it until the neighbour's
// address is known.
func (s *frameShard) sendFrame(b []byte, hop *neighbour, deadline *time.Time) error {
	mac, ok := hop.resolve()
	if !ok {
		switch hop.hold(b, s.port.now()) {
		case heldFirst:
			s.port.around.keep(hop)
			eventfd.Ring(s.port.wake)
			return nil
		case held:
			return nil
		case heldNot:
			return unix.EAGAIN // dropped
		case resolved:
			mac, _ = hop.resolve()
		}
	}
	copy(b[frameOffset+etherAtDst:], mac[:])
	for skipped := 0; ; {
		err := s.port.emit(b)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR || err == unix.ECONNREFUSED && skipped < maxErrors:
			skipped++
		case err != unix.EAGAIN || !s.wait(deadline):
			return err
		}
	}
}

// wait waits for room in the link until a deadline, which the first wait sets,
// and reports whether there may be some.
func (s *frameShard) wait(deadline *time.Time) bool {
	now := time.Now()
	if deadline.IsZero() {
		*deadline = now.Add(port.SendTimeout)
	}
	rest := deadline.Sub(now)
	return rest > 0 && s.port.link.awaitRoom(rest)
}

// maxErrors bounds the errors of earlier frames that Send skips.
const maxErrors = 8
