package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Faults are the faults of a [Network], as probabilities from 0 to 1. The zero
// value has no faults.
type Faults struct {
	Drop      float64 // the packet is lost
	Duplicate float64 // the packet arrives twice
	Reorder   float64 // up to 8 later packets overtake it, if they come soon
	Corrupt   float64 // one bit is flipped

	// Lose reports whether a packet, BTH to ICRC, is lost, in addition to Drop;
	// nil loses none. Senders call it, possibly concurrently.
	Lose func(from, to netip.AddrPort, packet []byte) bool
}

// maxDelay bounds the packets that overtake a reordered one.
const maxDelay = 8

// Network is a network in memory, for tests and simulations. Its packets have
// valid ICRCs. It is safe for concurrent use. The faults of one shard's packets
// are a function of the seed and these packets alone.
type Network struct {
	seed   uint64
	mtu    int
	faults atomic.Pointer[Faults]

	mu    sync.RWMutex
	ports map[netip.AddrPort]*memoryPort
}

// NewNetwork returns a network without ports and faults. mtu is the link MTU:
// the size of an IP packet, although packets have no IP header.
func NewNetwork(seed uint64, mtu int) *Network {
	n := &Network{seed: seed, mtu: mtu, ports: make(map[netip.AddrPort]*memoryPort)}
	n.SetFaults(Faults{})
	return n
}

// SetFaults sets the faults of packets sent from now on.
func (n *Network) SetFaults(f Faults) { n.faults.Store(&f) }

// Open opens a port at an address. UDP port 0 picks a free one. The errors wrap
// unix.EADDRINUSE if the address is taken.
func (n *Network) Open(addr netip.AddrPort) (Port, error) {
	addr, err := Source(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr.Port() == 0 {
		addr = n.ephemeral(addr.Addr())
	}
	if n.ports[addr] != nil || addr.Port() == 0 {
		return nil, fmt.Errorf("port %v: %w", addr, unix.EADDRINUSE)
	}
	p := &memoryPort{network: n, local: addr}
	n.ports[addr] = p
	return p, nil
}

// firstEphemeral is the first UDP port for addresses with port 0.
const firstEphemeral = 49152

// ephemeral returns a free UDP port of an address, or 0.
func (n *Network) ephemeral(a netip.Addr) netip.AddrPort {
	for port := firstEphemeral; port < 1<<16; port++ {
		if addr := netip.AddrPortFrom(a, uint16(port)); n.ports[addr] == nil {
			return addr
		}
	}
	return netip.AddrPortFrom(a, 0)
}

// find returns the port at an address, or nil.
func (n *Network) find(addr netip.AddrPort) *memoryPort {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.ports[addr]
}

// memoryPort is a port of a [Network].
type memoryPort struct {
	demux   Demux
	network *Network
	local   netip.AddrPort
}

func (p *memoryPort) Local() netip.AddrPort { return p.local }

// memoryPeer is a peer of a memoryPort.
type memoryPeer struct{ Destination }

func (p *memoryPort) Peer(to netip.AddrPort) (Peer, error) {
	d, err := NewDestination(p.local, to)
	if err != nil {
		return nil, err
	}
	return &memoryPeer{d}, nil
}

func (p *memoryPort) LinkMTU(netip.Addr) (int, error) { return p.network.mtu, nil }

func (p *memoryPort) ReceiveRoom() int { return p.demux.Room() }

func (p *memoryPort) Offloads() Offloads { return Offloads{Segmentation: true, Coalescing: true} }

func (p *memoryPort) Shard(i int) (Shard, error) {
	return p.demux.Shard(i, p.local, func(l *QueuedShard) Shard {
		a := p.local.Addr().As16()
		seed := p.network.seed ^ be.Uint64(a[8:]) ^ uint64(p.local.Port())<<48
		return &memoryShard{QueuedShard: l, port: p, chance: rand.New(rand.NewPCG(seed, uint64(i)))}
	})
}

func (p *memoryPort) Close() error {
	p.network.mu.Lock()
	if p.network.ports[p.local] == p {
		delete(p.network.ports, p.local)
	}
	p.network.mu.Unlock()
	return p.demux.Close()
}

// memoryShard is a shard of a memoryPort.
type memoryShard struct {
	*QueuedShard
	port   *memoryPort
	chance *rand.Rand
}

func (s *memoryShard) Send(spans []Span) error {
	if s.inbox.isClosed() {
		return net.ErrClosed
	}
	faults := s.port.network.faults.Load()
	var packets, bytes int
	var err error
	for _, span := range spans {
		peer := span.To.(*memoryPeer)
		to := s.port.network.find(peer.to)
		for i := range span.Packets {
			p := &span.Packets[i]
			if p.Size > min(wire.MaxPacket, s.port.network.mtu-Headers(peer.to.Addr())) {
				s.dropped.Add(1)
				err = fmt.Errorf("send %d bytes to %v: %w", p.Size, peer.to, unix.EMSGSIZE)
				continue
			}
			packets++
			bytes += p.Size
			peer.Seal(p, wire.Identification{})
			s.applyFaults(faults, to, peer.to, p)
		}
	}
	if packets > 0 {
		s.countSent(1, packets, bytes)
	}
	return err
}

// applyFaults delivers a packet subject to the faults.
func (s *memoryShard) applyFaults(f *Faults, to *memoryPort, addr netip.AddrPort, p *rc.Packet) {
	copies := 1
	if s.happens(f.Drop) {
		copies = 0
	} else if s.happens(f.Duplicate) {
		copies = 2
	}
	for range copies {
		late, flip := 0, -1
		if s.happens(f.Reorder) {
			late = 1 + s.chance.IntN(maxDelay)
		}
		if s.happens(f.Corrupt) {
			flip = s.chance.IntN(8 * p.Size)
		}
		if to != nil {
			s.deliver(f, to, addr, p, late, flip)
		}
	}
}

func (s *memoryShard) happens(chance float64) bool { return chance > 0 && s.chance.Float64() < chance }

// deliver copies a packet to a shard of its destination. flip is the bit to
// flip, or negative.
func (s *memoryShard) deliver(f *Faults, to *memoryPort, addr netip.AddrPort, p *rc.Packet, late, flip int) {
	shard := to.demux.shardFor(p.Header)
	if shard == nil {
		return
	}
	d := shard.inbox.reserve()
	if d == nil {
		shard.overrun.Add(1)
		return
	}
	d.from, d.delay = s.port.local, late
	d.size = Gather(d.bytes[:], p)
	if f.Lose != nil && f.Lose(s.port.local, addr, d.bytes[:d.size]) {
		shard.inbox.release(d)
		return
	}
	if flip >= 0 {
		d.bytes[flip/8] ^= 1 << (flip % 8)
	}
	shard.inbox.put(d)
}
