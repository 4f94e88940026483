package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// UDPOptions are the choices of a port of UDP sockets. The zero value takes
// what the kernel has.
type UDPOptions struct {
	NoSegmentation bool // send without UDP_SEGMENT
	NoCoalescing   bool // receive without UDP_GRO

	// Bytes of memory that the socket of each lane asks for: 0 is 4 MiB. Without
	// CAP_NET_ADMIN it gets no more than net.core.rmem_max and wmem_max.
	ReceiveBuffer, SendBuffer int
}

// defaultBuffer is the memory of a socket in each direction, bytes.
const defaultBuffer = 4 << 20

func (o UDPOptions) withDefaults() UDPOptions {
	if o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = defaultBuffer
	}
	if o.SendBuffer == 0 {
		o.SendBuffer = defaultBuffer
	}
	return o
}

// udpPort is a port of UDP sockets, one for each lane.
type udpPort struct {
	options      UDPOptions
	local        netip.AddrPort
	scope        uint32 // the interface of a link-local address, else 0
	segmentation atomic.Bool
	coalescing   bool
	room         int // packets
	closed       atomic.Bool

	mu    sync.Mutex // of those who open lanes
	first int        // socket of lane 0, bound before the lane is opened
	lanes []*udpLane
}

// OpenUDP opens a port of kernel sockets at the address of an interface. UDP port
// 0 stands for one that is free. The errors wrap unix.EADDRINUSE if another
// socket has the address.
func OpenUDP(addr netip.AddrPort, o UDPOptions) (Port, error) {
	addr = unmap(addr)
	if err := checkLocal(addr); err != nil {
		return nil, err
	}
	p := &udpPort{options: o.withDefaults(), local: addr}
	scope, err := scopeOf(addr.Addr())
	if err != nil {
		return nil, fmt.Errorf("port %v: %w", addr, err)
	}
	p.scope = scope
	fd, err := p.socket()
	if err != nil {
		return nil, err
	}
	p.first = fd
	p.local, err = boundTo(fd, addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("port %v: %w", addr, err), unix.Close(fd))
	}
	if p.room, err = packetRoom(fd); err != nil {
		return nil, errors.Join(fmt.Errorf("port %v: %w", addr, err), unix.Close(fd))
	}
	p.coalescing = !p.options.NoCoalescing && canCoalesce(fd)
	p.segmentation.Store(!p.options.NoSegmentation && canSegment(fd))
	return p, nil
}

func (p *udpPort) Local() netip.AddrPort { return p.local }

func (p *udpPort) Peer(to netip.AddrPort) (*Peer, error) {
	peer, err := newPeer(p.local, to)
	if err != nil {
		return nil, err
	}
	peer.name = nameOf(peer.to, p.scope)
	return peer, nil
}

func (p *udpPort) ReceiveRoom() int { return p.room }

func (p *udpPort) Offloads() Offloads {
	return Offloads{Segmentation: p.segmentation.Load(), Coalescing: p.coalescing}
}

func (p *udpPort) Lane(i int) (Lane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isOpen, err := checkLane(i, len(p.lanes), p.closed.Load()); err != nil {
		return nil, err
	} else if isOpen {
		return p.lanes[i], nil
	}
	fd := p.first
	if i > 0 {
		var err error
		if fd, err = p.join(); err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
	}
	l := newUDPLane(p, fd)
	p.lanes = append(p.lanes, l)
	return l, nil
}

// LinkMTU asks a socket that is connected for the moment.
func (p *udpPort) LinkMTU(to netip.Addr) (int, error) {
	return linkMTU(p.local.Addr(), to.Unmap(), p.scope)
}

func (p *udpPort) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, l := range p.lanes {
		errs = append(errs, unix.Close(l.fd))
	}
	if len(p.lanes) == 0 {
		errs = append(errs, unix.Close(p.first))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close port %v: %w", p.local, err)
	}
	return nil
}

// scopeOf returns the index of the interface that a zone names.
func scopeOf(a netip.Addr) (uint32, error) {
	if a.Zone() == "" {
		if a.Is6() && a.IsLinkLocalUnicast() {
			return 0, errors.New("a link-local address needs the name of its interface behind %")
		}
		return 0, nil
	}
	i, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return 0, fmt.Errorf("interface of the address: %w", err)
	}
	return uint32(i.Index), nil
}
