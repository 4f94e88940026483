package roce

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/ethernet"
	"github.com/viablk/viablk/via/roce/port"
)

// framesPrefix begins the name of a device with its own Ethernet stack.
const framesPrefix = "frames:"

// frames configures such a device: a separate address on the link of an
// interface, beside the kernel. Packets to addresses outside the prefix go to
// the gateway; without a gateway all addresses are on the link.
type frames struct {
	interfaceName string
	prefix        netip.Prefix // with the address of the device
	gateway       netip.Addr
}

// parseFrames reads the name of a device after its prefix:
// "IFACE,ADDR[/BITS][,GATEWAY]". Errors wrap ErrInvalidParameter.
func parseFrames(s string) (*frames, error) {
	fail := func(format string, args ...any) (*frames, error) {
		return nil, fmt.Errorf("device %s%s: %s: %w", framesPrefix, s, fmt.Sprintf(format, args...), via.ErrInvalidParameter)
	}
	parts := strings.Split(s, ",")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return fail("write frames:INTERFACE,ADDRESS[/BITS][,GATEWAY]")
	}
	f := &frames{interfaceName: parts[0]}
	var err error
	if f.prefix, err = netip.ParsePrefix(parts[1]); err != nil {
		addr, err := netip.ParseAddr(parts[1])
		if err != nil {
			return fail("%q is not an IP address", parts[1])
		}
		f.prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if a := f.prefix.Addr(); a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
		return fail("%v is not the address of one host", a)
	}
	if len(parts) == 3 {
		if f.gateway, err = netip.ParseAddr(parts[2]); err != nil || f.gateway.Is4() != f.prefix.Addr().Is4() {
			return fail("%q is not a gateway for %v", parts[2], f.prefix)
		}
	}
	return f, nil
}

// open opens the packet port.
func (f *frames) open(local netip.AddrPort) (port.Port, error) {
	link, err := ethernet.InterfaceLink(f.interfaceName)
	if err != nil {
		return nil, err
	}
	return ethernet.Open(local, link, ethernet.Options{Prefix: f.prefix.Masked(), Gateway: f.gateway})
}
