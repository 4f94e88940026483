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

// Faults are what a [Network] does to packets: chances from 0 to 1. The zero
// value is a network without faults.
type Faults struct {
	Drop      float64 // is lost
	Duplicate float64 // arrives twice
	Reorder   float64 // lets up to 8 later packets go first, if they come soon
	Corrupt   float64 // has one bit changed

	// Lose tells of a packet, BTH to ICRC, whether it is lost, beside chance; nil
	// loses none. It is called by whoever sends, at once by several.
	Lose func(from, to netip.AddrPort, packet []byte) bool
}

// mostLate is how many packets one that is reordered lets go first.
const mostLate = 8

// Network is a network in memory, for tests and simulations. Its packets have
// true ICRCs. It is safe for concurrent use. What it does to the packets of one
// lane depends on its seed and on them alone.
type Network struct {
	seed   uint64
	mtu    int
	faults atomic.Pointer[Faults]

	mu    sync.RWMutex
	ports map[netip.AddrPort]*memoryPort
}

// NewNetwork returns a network without ports and faults, on which an IP packet,
// if there were one, would be mtu bytes long at most.
func NewNetwork(seed uint64, mtu int) *Network {
	n := &Network{seed: seed, mtu: mtu, ports: make(map[netip.AddrPort]*memoryPort)}
	n.SetFaults(Faults{})
	return n
}

// SetFaults changes what happens to packets that are sent from now on.
func (n *Network) SetFaults(f Faults) { n.faults.Store(&f) }

// Open opens a port at an address. UDP port 0 stands for one that is free. The
// errors wrap unix.EADDRINUSE if the address is taken.
func (n *Network) Open(addr netip.AddrPort) (Port, error) {
	addr = unmap(addr)
	if err := checkLocal(addr); err != nil {
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

// firstEphemeral is the first UDP port for those that do not choose one.
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
	dealer
	network *Network
	local   netip.AddrPort
}

func (p *memoryPort) Local() netip.AddrPort { return p.local }

func (p *memoryPort) Peer(to netip.AddrPort) (*Peer, error) { return newPeer(p.local, to) }

func (p *memoryPort) LinkMTU(netip.Addr) (int, error) { return p.network.mtu, nil }

func (p *memoryPort) ReceiveRoom() int { return inboxPackets }

func (p *memoryPort) Offloads() Offloads { return Offloads{Segmentation: true, Coalescing: true} }

func (p *memoryPort) Lane(i int) (Lane, error) {
	return p.lane(i, p.local, func(l *dealtLane) Lane {
		a := p.local.Addr().As16()
		seed := p.network.seed ^ be.Uint64(a[8:]) ^ uint64(p.local.Port())<<48
		return &memoryLane{dealtLane: l, port: p, chance: rand.New(rand.NewPCG(seed, uint64(i)))}
	})
}

func (p *memoryPort) Close() error {
	p.network.mu.Lock()
	if p.network.ports[p.local] == p {
		delete(p.network.ports, p.local)
	}
	p.network.mu.Unlock()
	return p.close()
}

// memoryLane is a lane of a memoryPort.
type memoryLane struct {
	*dealtLane
	port   *memoryPort
	chance *rand.Rand
}

func (l *memoryLane) Send(spans []Span) error {
	if l.inbox.isClosed() {
		return net.ErrClosed
	}
	faults := l.port.network.faults.Load()
	var packets, bytes int
	var err error
	for _, span := range spans {
		to := l.port.network.find(span.To.to)
		for i := range span.Packets {
			p := &span.Packets[i]
			if p.Size > min(wire.MaxPacket, l.port.network.mtu-headers(span.To.to.Addr())) {
				l.dropped.Add(1)
				err = fmt.Errorf("send %d bytes to %v: %w", p.Size, span.To.to, unix.EMSGSIZE)
				continue
			}
			packets++
			bytes += p.Size
			l.seal(span.To, p)
			l.cast(faults, to, span.To.to, p)
		}
	}
	if packets > 0 {
		l.gave(1, packets, bytes)
	}
	return err
}

// seal completes a packet.
func (l *memoryLane) seal(to *Peer, p *rc.Packet) {
	if !p.Sealed {
		to.icrc.Seal(p.Trailer, wire.Identification{}, p.Header, p.Payload...)
	}
}

// cast lets a packet meet its fate.
func (l *memoryLane) cast(f *Faults, to *memoryPort, addr netip.AddrPort, p *rc.Packet) {
	copies := 1
	if l.happens(f.Drop) {
		copies = 0
	} else if l.happens(f.Duplicate) {
		copies = 2
	}
	for range copies {
		late, flip := 0, -1
		if l.happens(f.Reorder) {
			late = 1 + l.chance.IntN(mostLate)
		}
		if l.happens(f.Corrupt) {
			flip = l.chance.IntN(8 * p.Size)
		}
		if to != nil {
			l.deliver(f, to, addr, p, late, flip)
		}
	}
}

func (l *memoryLane) happens(chance float64) bool { return chance > 0 && l.chance.Float64() < chance }

// deliver copies a packet to a lane of its destination. flip is the bit that is
// changed, or negative.
func (l *memoryLane) deliver(f *Faults, to *memoryPort, addr netip.AddrPort, p *rc.Packet, late, flip int) {
	lane := to.laneFor(p.Header)
	if lane == nil {
		return
	}
	d := lane.inbox.reserve()
	if d == nil {
		lane.overrun.Add(1)
		return
	}
	d.from, d.late = l.port.local, late
	d.size = gather(d.bytes[:], p)
	if f.Lose != nil && f.Lose(l.port.local, addr, d.bytes[:d.size]) {
		lane.inbox.release(d)
		return
	}
	if flip >= 0 {
		d.bytes[flip/8] ^= 1 << (flip % 8)
	}
	lane.inbox.put(d)
}

// gather copies a packet to b and returns its length.
func gather(b []byte, p *rc.Packet) int {
	n := copy(b, p.Header)
	for _, s := range p.Payload {
		n += copy(b[n:], s)
	}
	return n + copy(b[n:], p.Trailer)
}
