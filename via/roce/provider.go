package roce

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// Open opens the packet port of a local address; UDP port 0 picks a free
	// one. Nil opens UDP sockets.
	Open func(local netip.AddrPort) (port.Port, error)

	// NoSegmentation and NoCoalescing disable UDP_SEGMENT and UDP_GRO.
	NoSegmentation, NoCoalescing bool

	// Port is the default UDP port of hosts. 0 is 4791.
	Port uint16

	// A connection breaks if the peer acknowledges nothing for Retries+1 times
	// Timeout. 0 is 500 ms, and 8.
	Timeout time.Duration
	Retries int

	// MTU bounds the path MTU: the payload of a packet in bytes. 0 is 4096.
	MTU int

	// InFlight bounds the packets in flight of a link; the peer's receive
	// buffer may bound them further. 0 is 512. To peers of other
	// implementations, which do not announce their buffer, the bound is 128 at
	// most.
	InFlight int
}

const (
	defaultRetries  = 8
	defaultInFlight = 512
)

// withDefaults returns a copy with defaults for zero fields.
func (o Options) withDefaults() Options {
	if o.Port == 0 {
		o.Port = wire.Port
	}
	if o.Timeout == 0 {
		o.Timeout = rdmahost.DefaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = defaultRetries
	}
	if o.MTU == 0 {
		o.MTU = wire.MaxPayload
	}
	if o.InFlight == 0 {
		o.InFlight = defaultInFlight
	}
	return o
}

// udp returns the options of a port of UDP sockets.
func (o *Options) udp() port.UDPOptions {
	return port.UDPOptions{NoSegmentation: o.NoSegmentation, NoCoalescing: o.NoCoalescing}
}

// New returns the provider. Its devices share endpoints: one may connect from
// an endpoint at which another listens, and listen there later.
func New(o Options) *Provider {
	p := &Provider{options: o.withDefaults(), kernel: o.Open == nil, endpoints: make(map[netip.AddrPort]*endpoint)}
	p.all.Store(new([]*endpoint))
	return p
}

// Provider implements [via.Provider]. It owns the endpoints of its devices and
// is safe for concurrent use.
type Provider struct {
	options Options
	kernel  bool                        // ports are kernel sockets
	all     atomic.Pointer[[]*endpoint] // the values of endpoints, for lock-free readers

	mu sync.Mutex // first in the lock order
	// +checklocks:mu
	endpoints map[netip.AddrPort]*endpoint
	// +checklocks:mu
	sockets *Sockets // of another process; nil: none
}

// Name returns "roce".
func (*Provider) Name() string { return "roce" }

// Open opens a device. "" connects from the local address that the route to the
// peer selects; an IP address connects from that address. Connections use a
// free UDP port, unless the device is an address with a port. Peers of other
// implementations always answer to port 4791.
//
// "frames:IFACE,ADDR[/BITS][,GATEWAY]" uses the provider's own Ethernet stack,
// at a separate address on the link of an interface: for hosts whose kernel
// binds the UDP port for its own RDMA. It requires CAP_NET_RAW. The address is
// in use, always with UDP port 4791, as long as the device listens or connects.
func (p *Provider) Open(device string) (via.Adapter, error) {
	a := &adapter{provider: p, outgoing: make(map[netip.Addr]*endpoint), used: make(map[*endpoint]struct{})}
	if device == "" {
		return a, nil
	}
	if name, ok := strings.CutPrefix(device, framesPrefix); ok {
		f, err := parseFrames(name)
		if err != nil {
			return nil, err
		}
		a.frames, a.local = f, netip.AddrPortFrom(f.prefix.Addr(), p.options.Port)
		return a, nil
	}
	local, err := netip.ParseAddrPort(device)
	if err != nil {
		var addr netip.Addr
		addr, err = netip.ParseAddr(device)
		local = netip.AddrPortFrom(addr, 0)
	}
	if err != nil || local.Addr().IsUnspecified() {
		return nil, fmt.Errorf("device %q: not an IP address of this host: %w", device, via.ErrInvalidParameter)
	}
	a.local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	return a, nil
}

// mtu returns the path MTU for a link MTU, the size of an IP packet.
func (p *Provider) mtu(link int) (wire.MTU, error) {
	m, ok := wire.PathMTU(link)
	for ok && m.Bytes() > p.options.MTU {
		m--
		ok = m.IsValid()
	}
	if !ok {
		return 0, fmt.Errorf("no path MTU for packets of %d bytes and payloads of %d: %w", link, p.options.MTU, via.ErrNotReachable)
	}
	return m, nil
}
