package roce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/wire"
)

// servicePort is viablk's own service, a port of the TCP port space.
const servicePort = 10809

// host is the host part of an address: "ADDR[:PORT][/SERVICE]". ADDR is an IPv4
// address, an IPv6 address, in brackets if a port follows, or a name.
type host struct {
	name    string // if it is none of
	addr    netip.Addr
	port    uint16
	service wire.ServiceID
}

// parseHost takes a host apart. Errors wrap ErrInvalidParameter.
func parseHost(s string, defaultPort uint16) (host, error) {
	h := host{port: defaultPort, service: wire.TCPService(servicePort)}
	name, service, hasService := strings.Cut(s, "/")
	if hasService {
		n, err := strconv.ParseUint(service, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("host %q: service %q is no number of 16 bits: %w", s, service, via.ErrInvalidParameter)
		}
		h.service = wire.TCPService(uint16(n))
	}
	bare := name
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		bare = name[1 : len(name)-1]
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		h.addr = addr.Unmap()
		return h, nil
	}
	if strings.Contains(name, ":") {
		var digits string
		var err error
		if name, digits, err = net.SplitHostPort(name); err != nil {
			return h, fmt.Errorf("host %q: %w: %w", s, via.ErrInvalidParameter, err)
		}
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("host %q: port %q is no number of 16 bits: %w", s, digits, via.ErrInvalidParameter)
		}
		h.port = uint16(n)
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		h.addr = addr.Unmap()
		return h, nil
	}
	if name == "" {
		return h, fmt.Errorf("host %q names no address: %w", s, via.ErrInvalidParameter)
	}
	h.name = name
	return h, nil
}

// resolve finds the IP address of a host that has a name.
func (h *host) resolve(ctx context.Context) error {
	if h.addr.IsValid() {
		return nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.name)
	if err != nil {
		return fmt.Errorf("resolve %q: %w: %w", h.name, via.ErrNotReachable, err)
	}
	h.addr = addrs[0].Unmap()
	return nil
}

// locals returns the addresses at which the device is to listen. One that speaks
// Ethernet itself has one.
func (a *adapter) locals(h *host) ([]netip.Addr, error) {
	own := a.local.Addr()
	switch {
	case a.frames == nil:
		return h.locals()
	case h.addr == own, h.addr.IsUnspecified() && h.addr.Is4() == own.Is4():
		return []netip.Addr{own}, nil
	}
	return nil, fmt.Errorf("listen at %v: the device has %v: %w", h.addr, own, via.ErrInvalidParameter)
}

// locals returns the addresses of this host that are meant: its own, or all if it
// is a wildcard.
func (h *host) locals() ([]netip.Addr, error) {
	if !h.addr.IsUnspecified() {
		return []netip.Addr{h.addr}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w: %w", via.ErrResource, err)
	}
	var out []netip.Addr
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(n.IP)
		addr = addr.Unmap()
		if ok && addr.Is4() == h.addr.Is4() && !addr.IsLinkLocalUnicast() && !addr.IsMulticast() {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("this host has no address like %v: %w", h.addr, via.ErrInvalidParameter)
	}
	return out, nil
}

// sourceFor returns the local address from which packets to another one go.
func sourceFor(to netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, wire.Port)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %v: %w: %w", to, via.ErrNotReachable, err)
	}
	defer func() { _ = c.Close() }() // nothing was sent
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
