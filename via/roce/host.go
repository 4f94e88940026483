package roce

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
	"github.com/viablk/viablk/via/roce/wire"
)

// host is the host part of an address, "ADDR[:PORT][/SERVICE]": PORT is the UDP
// port of the endpoint, SERVICE a port of the TCP port space.
type host struct {
	rdmahost.Host
	service wire.ServiceID
}

// parseHost parses a host. Errors wrap ErrInvalidParameter.
func parseHost(s string, defaultPort uint16) (host, error) {
	name, digits, hasService := strings.Cut(s, "/")
	service := uint16(rdmahost.ServicePort)
	if hasService {
		var err error
		if service, err = rdmahost.ParsePort(digits); err != nil {
			return host{}, fmt.Errorf("host %q: service %w", s, err)
		}
	}
	h, err := rdmahost.Parse(name, defaultPort)
	return host{h, wire.TCPService(service)}, err
}

// locals returns the addresses at which the device listens. A device with its
// own Ethernet stack has one.
func (a *adapter) locals(h *host) ([]netip.Addr, error) {
	local := a.local.Addr()
	switch {
	case a.frames == nil:
		return h.locals()
	case h.Addr == local, h.Addr.IsUnspecified() && h.Addr.Is4() == local.Is4():
		return []netip.Addr{local}, nil
	}
	return nil, fmt.Errorf("listen at %v: the device has %v: %w", h.Addr, local, via.ErrInvalidParameter)
}

// locals returns the address itself, or all addresses of this host for a
// wildcard.
func (h *host) locals() ([]netip.Addr, error) {
	if !h.Addr.IsUnspecified() {
		return []netip.Addr{h.Addr}, nil
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
		if ok && addr.Is4() == h.Addr.Is4() && !addr.IsLinkLocalUnicast() && !addr.IsMulticast() {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("this host has no address like %v: %w", h.Addr, via.ErrInvalidParameter)
	}
	return out, nil
}

// sourceFor returns the local source address of packets to an address.
func sourceFor(to netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, wire.Port)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %v: %w: %w", to, via.ErrNotReachable, err)
	}
	defer func() { _ = c.Close() }() // nothing was sent
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
