package port

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// framesLane is a lane of a framesPort.
type framesLane struct {
	*dealtLane
	port *framesPort
	id   uint16 // of the next packet

	// buffer is the frame that is sent, behind room for the header of the link.
	buffer [frameOffset + etherHeaderSize + ip6HeaderSize + udpHeaderSize + wire.MaxPacket]byte
}

func newFramesLane(p *framesPort, l *dealtLane) *framesLane {
	return &framesLane{dealtLane: l, port: p}
}

func (l *framesLane) Send(spans []Span) error {
	if l.inbox.isClosed() {
		return net.ErrClosed
	}
	var deadline time.Time // of waiting for room; zero before the first time
	var failure error
	now := l.port.now()
	for i := range spans {
		to := spans[i].To
		if to.hop.isDue(now) {
			l.port.ask(to.hop)
		}
		for k := range spans[i].Packets {
			p := &spans[i].Packets[k]
			var err error
			if p.Size+headers(to.to.Addr()) > min(l.port.options.MTU, len(l.buffer)-frameOffset-etherHeaderSize) {
				err = unix.EMSGSIZE
			} else {
				err = l.sendFrame(l.frame(to, p), to.hop, &deadline)
			}
			if err == nil {
				l.gave(1, 1, p.Size)
				continue
			}
			l.dropped.Add(1)
			if failure == nil && !errors.Is(err, unix.EAGAIN) {
				failure = fmt.Errorf("send to %v: %w", to.to, err)
			}
		}
	}
	return failure
}

// frame seals a packet and builds its frame, without the Ethernet address of the
// destination.
func (l *framesLane) frame(to *Peer, p *rc.Packet) []byte {
	s := l.port.station
	size := udpHeaderSize + p.Size
	head := frameOffset + s.headers()
	b := l.buffer[:head+size]
	if !p.Sealed {
		to.icrc.Seal(p.Trailer, wire.Identification{ID: l.id}, p.Header, p.Payload...)
	}
	gather(b[head+udpHeaderSize:], p)
	from := s.local
	putUDP(b[head:], from, to.to)
	kind := uint16(etherIPv6)
	if ip := b[frameOffset+etherHeaderSize:]; from.Addr().Is4() {
		kind = etherIPv4
		putIPv4(ip, from.Addr(), to.to.Addr(), unix.IPPROTO_UDP, size, l.id)
		l.id++
	} else {
		putIPv6(ip, from.Addr(), to.to.Addr(), unix.IPPROTO_UDP, size, hopLimit)
	}
	putEther(b[frameOffset:], hardwareAddr{}, s.mac, kind)
	return b
}

// sendFrame sends a frame to a neighbour, or lets it wait until the neighbour's
// address is known.
func (l *framesLane) sendFrame(b []byte, hop *neighbour, deadline *time.Time) error {
	mac, ok := hop.resolve()
	if !ok {
		switch hop.hold(b, l.port.now()) {
		case heldFirst:
			eventfd.Ring(l.port.wake)
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
		err := l.port.emit(b)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR || err == unix.ECONNREFUSED && skipped < mostErrors:
			skipped++
		case err != unix.EAGAIN || !l.wait(deadline):
			return err
		}
	}
}

// wait waits for room in the link until a deadline, which the first wait sets, and
// reports whether there may be some.
func (l *framesLane) wait(deadline *time.Time) bool {
	now := time.Now()
	if deadline.IsZero() {
		*deadline = now.Add(patience)
	}
	rest := deadline.Sub(now)
	return rest > 0 && awaitRoom(l.port.link.fd, rest)
}
