// Package ethernet implements [port.Port] with an Ethernet, IP and UDP of its
// own, for hosts whose kernel needs UDP port 4791 for its own RDMA, and for
// links that carry frames instead of datagrams. A port is a station with one
// address, beside the kernel's:
//
//	port.Shard ── Send ──▶ frame ── neighbour known ──▶ Link ══ network
//	     ▲                                               │
//	port.Demux ◀── UDP ── station: ARP, ND, ping ◀── routineRead
//
// docs/decisions/0012-ethernet-frames.md says why it exists.
package ethernet

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
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// Options configure a port of Ethernet frames.
type Options struct {
	// HardwareAddr is the port's Ethernet address; nil derives it from the IP
	// address, so that cached neighbour entries stay valid for the next port at
	// that address.
	HardwareAddr net.HardwareAddr

	// Packets to addresses outside Prefix go to Gateway. Without a gateway all
	// addresses are on the link.
	Prefix  netip.Prefix
	Gateway netip.Addr

	MTU int // bytes of an IP packet; 0 is the interface's, or 1500
}

// framePort is a port with its own Ethernet, IP and UDP. It sees the IP
// header, so its shards can check the ICRC exactly, with IPv4 too.
type framePort struct {
	demux port.Demux
	*station
	link    *Link
	options Options
	wake    int // eventfd that wakes the reader: to close, or to repeat a solicitation
	ending  atomic.Bool
	reader  sync.WaitGroup

	closing  sync.Once
	closeErr error
}

// Open opens a port at an address that the kernel does not have. It takes
// ownership of the link, also on error. UDP port 0 stands for [wire.Port].
func Open(addr netip.AddrPort, link *Link, o Options) (port.Port, error) {
	p, err := newFramePort(addr, link, o)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	p.reader.Go(p.routineRead)
	return p, nil
}

func newFramePort(addr netip.AddrPort, link *Link, o Options) (*framePort, error) {
	addr, err := port.Source(addr)
	if err != nil {
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
		return nil, fmt.Errorf("port %v: %v is not a unicast Ethernet address", addr, o.HardwareAddr)
	}
	if o.MTU == 0 {
		o.MTU = link.mtu
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	wake, err := eventfd.New()
	if err != nil {
		return nil, fmt.Errorf("port %v: %w", addr, err)
	}
	p := &framePort{link: link, options: o, wake: wake}
	p.station = newStation(addr, mac, link.write, p.demuxRun)
	return p, nil
}

func (p *framePort) Local() netip.AddrPort { return p.local }

// peer is a destination and the neighbour on the way to it.
type peer struct {
	port.Destination
	hop *neighbour
}

func (p *framePort) Peer(to netip.AddrPort) (port.Peer, error) {
	d, err := port.NewDestination(p.local, to)
	if err != nil {
		return nil, err
	} else if p.demux.IsClosed() {
		return nil, net.ErrClosed
	}
	hop := d.Addr().Addr()
	if p.options.Gateway.IsValid() && !p.options.Prefix.Contains(hop) {
		hop = p.options.Gateway
	}
	n := p.around.get(hop)
	if _, ok := n.resolve(); !ok && n.isDue(p.now()) {
		p.ask(n)
	}
	return &peer{d, n}, nil
}

func (p *framePort) LinkMTU(netip.Addr) (int, error) { return p.options.MTU, nil }

func (p *framePort) ReceiveRoom() int { return p.demux.Room() }

func (p *framePort) Offloads() port.Offloads { return port.Offloads{} }

func (p *framePort) Shard(i int) (port.Shard, error) {
	return p.demux.Shard(i, p.local, func(l *port.QueuedShard) port.Shard { return newFrameShard(p, l) })
}

func (p *framePort) Close() error {
	p.closing.Do(func() {
		p.ending.Store(true)
		eventfd.Ring(p.wake)
		p.reader.Wait()
		p.closeErr = errors.Join(p.demux.Close(), p.link.Close(), eventfd.Close(p.wake))
	})
	return p.closeErr
}

// routineRead reads frames until the port is closed.
func (p *framePort) routineRead() {
	buffer := make([]byte, virtioHeaderSize+etherHeaderSize+1<<16)
	for !p.ending.Load() {
		frame, segment, err := p.link.read(buffer)
		switch {
		case err == nil:
			p.handle(frame, segment)
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			p.waitReadable(true)
		default:
			// An ICMP error for an earlier frame, or the interface is down or
			// removed. It may recover.
			p.waitReadable(false)
		}
	}
}

// waitReadable waits for the link or for wake. With linkReady false it ignores
// the link, for afterError at most.
func (p *framePort) waitReadable(linkReady bool) {
	fds := []unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}, {Fd: int32(p.link.fd), Events: unix.POLLIN}}
	wait := -1
	if !linkReady {
		fds, wait = fds[:1], afterError
	} else if p.askAgain() {
		wait = int(askAgain / time.Millisecond)
	}
	_, _ = unix.Poll(fds, wait)
	if fds[0].Revents != 0 && !p.ending.Load() {
		eventfd.Drain(p.wake)
	}
}

// afterError is the reader's back-off after an error, in ms.
const afterError = 5

// demuxRun splits a datagram into packets and distributes them to the shards.
func (p *framePort) demuxRun(d delivery) {
	size := len(d.payload)
	if d.segment > 0 {
		size = d.segment
	}
	for more := true; more; more = len(d.payload) > 0 {
		b := d.payload[:min(size, len(d.payload))]
		d.payload = d.payload[len(b):]
		p.demux.Deliver(d.from, d.identification, b)
		d.identification.ID++ // as segmentation numbers the packets of a run
	}
}
