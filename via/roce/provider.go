package roce

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// Open opens the packet port of a local address; UDP port 0 stands for one that
	// is free. Nil opens UDP sockets.
	Open func(local netip.AddrPort) (port.Port, error)

	// UDP sockets send without UDP_SEGMENT, and receive without UDP_GRO.
	NoSegmentation, NoCoalescing bool

	// Port is the UDP port of hosts that name none. 0 is 4791.
	Port uint16

	// A peer is gone if it acknowledges nothing for Retries+1 times Timeout. 0 is
	// 500 ms, and 8.
	Timeout time.Duration
	Retries int

	// MTU is the most payload of a packet, bytes, if the path carries more. 0 is
	// 4096.
	MTU int

	// Window is how many packets of a link are under way at most, if the receive
	// buffer of the end that they go to has room for so many. 0 is 512. To foreign
	// peers, of whose room nothing is known, it is never more than 128.
	Window int
}

const (
	defaultTimeout = 500 * time.Millisecond
	defaultRetries = 8
	defaultWindow  = 512
)

// withDefaults returns a copy without zeros.
func (o Options) withDefaults() Options {
	if o.Open == nil {
		udp := port.UDPOptions{NoSegmentation: o.NoSegmentation, NoCoalescing: o.NoCoalescing}
		o.Open = func(local netip.AddrPort) (port.Port, error) { return port.OpenUDP(local, udp) }
	}
	if o.Port == 0 {
		o.Port = wire.Port
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = defaultRetries
	}
	if o.MTU == 0 {
		o.MTU = wire.MaxPayload
	}
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	return o
}

// New returns the provider. Its devices share endpoints: what one of them listens
// at, another may connect from, and listen at later.
func New(o Options) *Provider {
	p := &Provider{options: o.withDefaults(), kernel: o.Open == nil, endpoints: make(map[netip.AddrPort]*endpoint)}
	p.all.Store(new([]*endpoint))
	return p
}

// Provider is the provider. It knows the endpoints of its devices and is safe for
// concurrent use.
type Provider struct {
	options Options
	kernel  bool                        // ports are sockets
	all     atomic.Pointer[[]*endpoint] // the values of endpoints, for who takes no lock

	mu        sync.Mutex // before any other lock
	endpoints map[netip.AddrPort]*endpoint
}

// Name returns "roce".
func (*Provider) Name() string { return "roce" }

// Open opens a device: "" takes the local address that the route to a peer
// demands; an IP address is the one that connections come from. They come from a
// free UDP port, unless the device is an address with a port. Peers of another
// kind answer to port 4791, whatever port they were asked from.
//
// "frames:IFACE,ADDR[/BITS][,GATEWAY]" speaks Ethernet itself, at an address of its
// own on the link of an interface: for hosts whose kernel has the UDP port for
// RDMA of its own. It takes CAP_NET_RAW. Its address is in use as long as the
// device listens or connects there, always at UDP port 4791 of it.
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
		return nil, fmt.Errorf("no device %q, an IP address of this host is one: %w", device, via.ErrInvalidParameter)
	}
	a.local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	return a, nil
}

// mtu returns the path MTU on a link, whose MTU is that of an IP packet.
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
