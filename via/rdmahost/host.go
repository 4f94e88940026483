package rdmahost

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/viablk/viablk/via"
)

// Host is the host part of an address: "ADDR[:PORT]". ADDR is an IPv4 address,
// an IPv6 address, in brackets if a port follows, or a name.
type Host struct {
	Name string     // empty if ADDR is an IP address
	Addr netip.Addr // invalid until a name is resolved
	Port uint16
}

// Parse parses a host. Errors wrap [via.ErrInvalidParameter].
func Parse(s string, defaultPort uint16) (Host, error) {
	h := Host{Port: defaultPort}
	name := s
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		h.Addr = addr.Unmap()
		return h, nil
	}
	if strings.Contains(name, ":") {
		var digits string
		var err error
		if name, digits, err = net.SplitHostPort(name); err != nil {
			return h, fmt.Errorf("host %q: %w: %w", s, via.ErrInvalidParameter, err)
		}
		if h.Port, err = ParsePort(digits); err != nil {
			return h, fmt.Errorf("host %q: port %w", s, err)
		}
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		h.Addr = addr.Unmap()
		return h, nil
	}
	if name == "" {
		return h, fmt.Errorf("host %q has no address: %w", s, via.ErrInvalidParameter)
	}
	h.Name = name
	return h, nil
}

// ParsePort parses the number of a port or service, 1 to 65535.
func ParsePort(digits string) (uint16, error) {
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q: want a number from 1 to 65535: %w", digits, via.ErrInvalidParameter)
	}
	return uint16(n), nil
}

// Resolve looks up the IP address of a host that has a name. Errors wrap
// [via.ErrNotReachable].
func (h *Host) Resolve(ctx context.Context) error {
	if h.Addr.IsValid() {
		return nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.Name)
	if err != nil {
		return fmt.Errorf("resolve %q: %w: %w", h.Name, via.ErrNotReachable, err)
	}
	h.Addr = addrs[0].Unmap()
	return nil
}

// AddrPort returns the resolved address and the port.
func (h *Host) AddrPort() netip.AddrPort { return netip.AddrPortFrom(h.Addr, h.Port) }
