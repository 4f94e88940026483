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

// UDPOptions are the options of a UDP port. The zero value uses all offloads of
// the kernel.
type UDPOptions struct {
	NoSegmentation bool // send without UDP_SEGMENT
	NoCoalescing   bool // receive without UDP_GRO

	// Socket buffer sizes of each shard, in bytes; 0 is 4 MiB. Without
	// CAP_NET_ADMIN, net.core.rmem_max and wmem_max bound them.
	ReceiveBuffer, SendBuffer int
}

// defaultBuffer is the default size of a socket buffer, in bytes.
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

// udpPort is a port of UDP sockets, one for each shard.
type udpPort struct {
	options      UDPOptions
	local        netip.AddrPort
	scope        uint32 // the interface of a link-local address, else 0
	segmentation atomic.Bool
	coalescing   bool
	room         int // packets
	closed       atomic.Bool

	mu sync.Mutex // serializes opening shards and closing
	// +checklocks:mu
	first  int // socket of shard 0, bound before the shard is opened
	shards []*udpShard
}

// OpenUDP opens a port of kernel sockets at the address of an interface. UDP
// port 0 picks a free one. The error wraps unix.EADDRINUSE if another socket is
// bound to the address.
func OpenUDP(addr netip.AddrPort, o UDPOptions) (Port, error) {
	return openUDP(addr, o, func(p *udpPort) (int, error) { return p.socket() })
}

// openUDP opens a port whose first socket is from a function.
func openUDP(addr netip.AddrPort, o UDPOptions, socket func(*udpPort) (fd int, err error)) (Port, error) {
	addr, err := Source(addr)
	if err != nil {
		return nil, err
	}
	p := &udpPort{options: o.withDefaults(), local: addr}
	scope, err := scopeOf(addr.Addr())
	if err != nil {
		return nil, fmt.Errorf("port %v: %w", addr, err)
	}
	p.scope = scope
	fd, err := socket(p)
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

// udpPeer is a peer of a udpPort.
type udpPeer struct {
	Destination
	name sockname // socket address
}

func (p *udpPort) Peer(to netip.AddrPort) (Peer, error) {
	d, err := NewDestination(p.local, to)
	if err != nil {
		return nil, err
	}
	return &udpPeer{d, nameOf(d.to, p.scope)}, nil
}

func (p *udpPort) ReceiveRoom() int { return p.room }

func (p *udpPort) Offloads() Offloads {
	return Offloads{Segmentation: p.segmentation.Load(), Coalescing: p.coalescing}
}

func (p *udpPort) Shard(i int) (Shard, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isOpen, err := checkShard(i, len(p.shards), p.closed.Load()); err != nil {
		return nil, err
	} else if isOpen {
		return p.shards[i], nil
	}
	fd := p.first
	if i > 0 {
		var err error
		if fd, err = p.join(); err != nil {
			return nil, fmt.Errorf("shard %d: %w", i, err)
		}
	}
	s := newUDPShard(p, fd)
	p.shards = append(p.shards, s)
	return s, nil
}

// LinkMTU asks a temporary connected socket.
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
	for _, s := range p.shards {
		errs = append(errs, unix.Close(s.fd))
	}
	if len(p.shards) == 0 {
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
			return 0, errors.New("a link-local address needs the name of its interface after %")
		}
		return 0, nil
	}
	i, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return 0, fmt.Errorf("interface of the address: %w", err)
	}
	return uint32(i.Index), nil
}
