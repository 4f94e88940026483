package port

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via/roce/wire"
)

// FrameOptions are the choices of a port of Ethernet frames.
type FrameOptions struct {
	// HardwareAddr is the port's Ethernet address; nil is one that follows from the IP
	// address, so that neighbours who remember it reach the next port there.
	HardwareAddr net.HardwareAddr

	// Addresses outside Prefix are reached by way of Gateway. Without one, all are
	// on the link.
	Prefix  netip.Prefix
	Gateway netip.Addr

	MTU int // bytes of an IP packet; 0 is the interface's, or 1500
}

// framesPort is a port that speaks Ethernet, IP and UDP itself. It sees the IP
// header, so its lanes check all 32 bits of the ICRC with IPv4 too.
type framesPort struct {
	dealer
	*station
	link    *FrameLink
	options FrameOptions
	wake    int // eventfd, readable when the reader has something else to do
	ending  atomic.Bool
	reader  sync.WaitGroup

	closing  sync.Once
	closeErr error
}

// OpenFrames opens a port at an address of its own, which the kernel does not
// have. The link is the port's from then on, also if there is an error. UDP port
// 0 stands for [wire.Port].
func OpenFrames(addr netip.AddrPort, link *FrameLink, o FrameOptions) (Port, error) {
	p, err := newFramesPort(unmap(addr), link, o)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	p.reader.Go(p.routineRead)
	return p, nil
}

func newFramesPort(addr netip.AddrPort, link *FrameLink, o FrameOptions) (*framesPort, error) {
	if err := checkLocal(addr); err != nil {
		return nil, err
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), wire.Port)
	}
	mac := hardwareAddr{0: 0x02} // locally administered
	if o.HardwareAddr == nil {
		digest := sha256.Sum256(addr.Addr().AsSlice())
		copy(mac[1:], digest[:])
	} else if copy(mac[:], o.HardwareAddr) != len(mac) || mac.isGroup() {
		return nil, fmt.Errorf("port %v: %v is no address of an Ethernet station", addr, o.HardwareAddr)
	}
	if o.MTU == 0 {
		o.MTU = link.mtu
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("port %v: create an eventfd: %w", addr, err)
	}
	p := &framesPort{link: link, options: o, wake: wake}
	p.station = newStation(addr, mac, link.write, p.deal)
	return p, nil
}

func (p *framesPort) Local() netip.AddrPort { return p.local }

func (p *framesPort) Peer(to netip.AddrPort) (*Peer, error) {
	peer, err := newPeer(p.local, to)
	if err != nil {
		return nil, err
	} else if p.hasClosed() {
		return nil, net.ErrClosed
	}
	hop := peer.to.Addr()
	if p.options.Gateway.IsValid() && !p.options.Prefix.Contains(hop) {
		hop = p.options.Gateway
	}
	peer.hop = p.around.get(hop)
	if _, ok := peer.hop.resolve(); !ok && peer.hop.isDue(p.now()) {
		p.ask(peer.hop)
	}
	return peer, nil
}

func (p *framesPort) LinkMTU(netip.Addr) (int, error) { return p.options.MTU, nil }

func (p *framesPort) ReceiveRoom() int { return inboxPackets }

func (p *framesPort) Offloads() Offloads { return Offloads{} }

func (p *framesPort) Lane(i int) (Lane, error) {
	return p.lane(i, p.local, func(l *dealtLane) Lane { return newFramesLane(p, l) })
}

func (p *framesPort) Close() error {
	p.closing.Do(func() {
		p.ending.Store(true)
		eventfd.Ring(p.wake)
		p.reader.Wait()
		p.closeErr = errors.Join(p.dealer.close(), p.link.Close(), unix.Close(p.wake))
	})
	return p.closeErr
}

// routineRead reads frames until the port is closed.
func (p *framesPort) routineRead() {
	buffer := make([]byte, virtioHeaderSize+etherHeaderSize+1<<16)
	for !p.ending.Load() {
		frame, segment, err := p.link.read(buffer)
		switch {
		case err == nil:
			p.handle(frame, segment)
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			p.rest(true)
		default:
			// What an ICMP message said about a frame that was sent, or that the
			// interface is down or gone. It may come back.
			p.rest(false)
		}
	}
}

// rest waits until there is something to do. Without hope that there is something
// to read it takes a moment.
func (p *framesPort) rest(hope bool) {
	fds := []unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}, {Fd: int32(p.link.fd), Events: unix.POLLIN}}
	wait := -1
	if !hope {
		fds, wait = fds[:1], afterError
	} else if p.askAgain() {
		wait = int(askAgain / time.Millisecond)
	}
	_, _ = unix.Poll(fds, wait)
	if fds[0].Revents != 0 && !p.ending.Load() {
		eventfd.Drain(p.wake)
	}
}

// afterError is how long the reader rests after an error, ms.
const afterError = 5

// deal deals what arrived out to the lanes.
func (p *framesPort) deal(d delivery) {
	size := len(d.payload)
	if d.segment > 0 {
		size = d.segment
	}
	for more := true; more; more = len(d.payload) > 0 {
		b := d.payload[:min(size, len(d.payload))]
		d.payload = d.payload[len(b):]
		p.dealPacket(d.from, d.identification, b)
		d.identification.ID++ // as whoever cuts a run counts
	}
}

// dealPacket copies a packet to the inbox of its lane.
func (p *framesPort) dealPacket(from netip.AddrPort, id wire.Identification, b []byte) {
	lane := p.laneFor(b)
	switch {
	case lane == nil:
		return
	case len(b) < wire.MinPacket || len(b) > wire.MaxPacket:
		lane.malformed.Add(1)
		return
	}
	to := lane.inbox.reserve()
	if to == nil {
		lane.overrun.Add(1)
		return
	}
	to.from, to.identification, to.late = from, id, 0
	to.size = copy(to.bytes[:], b)
	lane.inbox.put(to)
}
