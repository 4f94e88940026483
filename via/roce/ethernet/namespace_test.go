package ethernet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/ethernet"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
)

// The first addresses of stations beside the kernel.
const (
	around4 = "192.0.2.2"
	around6 = "2001:db8::2"
)

// veth returns a link to the bridge by a pair of interfaces.
func veth(tb testing.TB, i, mtu int) *ethernet.Link {
	tb.Helper()
	name, peer := fmt.Sprintf("v%d", i), fmt.Sprintf("p%d", i)
	porttest.IP(tb,
		fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d", name, mtu, peer, mtu),
		fmt.Sprintf("link set %s addrgenmode none up", name),
		fmt.Sprintf("link set %s addrgenmode none master br0 up", peer),
	)
	l, err := ethernet.InterfaceLink(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// tap returns a link to the bridge by a tap device.
func tap(tb testing.TB, i, mtu int) *ethernet.Link {
	tb.Helper()
	name := fmt.Sprintf("t%d", i)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Skipf("no tap devices: %v", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		tb.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		tb.Fatal(errors.Join(err, unix.Close(fd)))
	}
	porttest.IP(tb, fmt.Sprintf("link set %s mtu %d addrgenmode none master br0 up", name, mtu))
	l, err := ethernet.TapLink(fd)
	if err != nil {
		tb.Fatal(errors.Join(err, unix.Close(fd)))
	}
	return l
}

// besideKernel returns ports of frames and of the kernel's sockets that talk to
// each other; the first is of the kernel's, or the only one that is not.
func besideKernel(kernel, around string, kernelFirst bool, link func(testing.TB, int, int) *ethernet.Link) porttest.Fabric {
	const mtu = 4500
	return func(tb testing.TB, n int) []port.Port {
		tb.Helper()
		porttest.Namespace(tb, mtu)
		var ports []port.Port
		a := netip.MustParseAddr(around)
		for i := range n {
			var p port.Port
			var err error
			if (i == 0) == kernelFirst {
				p, err = port.OpenUDP(netip.AddrPortFrom(netip.MustParseAddr(kernel), 0), port.UDPOptions{})
			} else {
				p, err = ethernet.Open(netip.AddrPortFrom(a, 0), link(tb, i, mtu), ethernet.Options{MTU: mtu})
			}
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = p.Close() })
			ports = append(ports, p)
			a = a.Next()
		}
		for _, p := range ports {
			introduce(tb, p, netip.MustParseAddr(kernel))
		}
		return ports
	}
}

// introduce adds a port of frames to the kernel's neighbour cache. Otherwise
// the kernel would resolve it, and the next packet could overtake the held one.
func introduce(tb testing.TB, p port.Port, kernel netip.Addr) {
	tb.Helper()
	if p.Local().Addr() == kernel {
		return
	}
	porttest.AwaitIP(tb, "lladdr", func() {
		if _, err := p.Peer(netip.AddrPortFrom(kernel, 9)); err != nil { // resolves the kernel's address repeatedly
			tb.Fatal(err)
		}
	}, "neighbour", "show", p.Local().Addr().String())
}

// The kernel's UDP and this package's accept each other's headers, IP
// identifications and runs, and resolve each other's address.
func TestEthernetBesideKernel(t *testing.T) {
	for _, link := range []struct {
		name string
		open func(testing.TB, int, int) *ethernet.Link
	}{{"veth", veth}, {"tap", tap}} {
		for _, family := range []struct{ name, kernel, around string }{{"IPv4", porttest.Kernel4, around4}, {"IPv6", porttest.Kernel6, around6}} {
			for _, kernelFirst := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, kernel first %v", link.name, family.name, kernelFirst), func(t *testing.T) {
					porttest.Conformance(t, besideKernel(family.kernel, family.around, kernelFirst, link.open))
				})
			}
		}
	}
}

// A port of frames answers short and long pings.
func TestEthernetPing(t *testing.T) {
	for _, family := range []struct {
		name, kernel, around, network string
		request, answer               byte
	}{
		{"IPv4", porttest.Kernel4, around4, "ip4:icmp", 8, 0},
		{"IPv6", porttest.Kernel6, around6, "ip6:ipv6-icmp", 128, 129},
	} {
		t.Run(family.name, func(t *testing.T) {
			porttest.Namespace(t, 1500)
			p, err := ethernet.Open(netip.AddrPortFrom(netip.MustParseAddr(family.around), 0), veth(t, 0, 1500), ethernet.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Close() }()
			c, err := net.ListenPacket(family.network, family.kernel)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			to := &net.IPAddr{IP: net.ParseIP(family.around)}
			for i, size := range []int{0, 1, 57, 1452} {
				ping := make([]byte, 8+size)
				ping[0], ping[5], ping[7], ping[len(ping)-1] = family.request, 1, byte(i), byte(i)
				binary.BigEndian.PutUint16(ping[2:], internetChecksum(ping)) // with IPv6 the kernel computes it
				if _, err := c.WriteTo(ping, to); err != nil {
					t.Fatal(err)
				}
				if err := c.SetReadDeadline(time.Now().Add(porttest.Timeout)); err != nil {
					t.Fatal(err)
				}
				for got := make([]byte, 1500); ; {
					n, from, err := c.ReadFrom(got)
					if err != nil {
						t.Fatalf("ping of %d bytes: %v", size, err)
					}
					if got[0] != family.answer || from.String() != to.String() {
						continue
					}
					if family.answer == 0 && internetChecksum(got[:n]) != 0 || !bytes.Equal(got[4:n], ping[4:]) {
						t.Errorf("%x is no answer to %x", got[:n], ping)
					}
					break
				}
			}
		})
	}
}

// internetChecksum is the reference code of RFC 1071.
func internetChecksum(b []byte) uint16 {
	total := uint32(0)
	for i, v := range b {
		total += uint32(v) << (8 * (1 - i%2))
	}
	for total>>16 != 0 {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// Routers change hop limits and Ethernet addresses, which the ICRC does not
// cover. Packets to other networks go to the gateway.
func TestEthernetAcrossRouter(t *testing.T) {
	for _, family := range []struct{ name, near, far, nearGateway, farGateway string }{
		{"IPv4", around4 + "/24", "198.51.100.2/24", porttest.Kernel4, "198.51.100.1"},
		{"IPv6", around6 + "/64", "2001:db8:1::2/64", porttest.Kernel6, "2001:db8:1::1"},
	} {
		t.Run(family.name, func(t *testing.T) {
			porttest.Namespace(t, 4500)
			for _, forward := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
				if err := os.WriteFile("/proc/sys/net/"+forward, []byte("1"), 0); err != nil {
					t.Fatalf("let the kernel route: %v", err)
				}
			}
			near, far := veth(t, 0, 4500), veth(t, 1, 4500)
			porttest.IP(t, "link set p1 nomaster")
			porttest.Address(t, "p1", "198.51.100.1/24", "2001:db8:1::1/64", "fe80::1/64") // the router solicits from the last one
			open := func(addr, gateway string, link *ethernet.Link, mac ...byte) port.Port {
				prefix := netip.MustParsePrefix(addr)
				p, err := ethernet.Open(netip.AddrPortFrom(prefix.Addr(), 0), link, ethernet.Options{
					Prefix: prefix, Gateway: netip.MustParseAddr(gateway), HardwareAddr: mac,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Close() })
				return p
			}
			ends := porttest.Fabric(func(testing.TB, int) []port.Port {
				return []port.Port{open(family.near, family.nearGateway, near), open(family.far, family.farGateway, far, 2, 0, 0, 0, 0, 7)}
			}).Start(t, 2, 1)
			for i, from := range ends {
				to := ends[1-i]
				if mtu, err := from.LinkMTU(to.Local().Addr()); mtu != 4500 || err != nil {
					t.Errorf("the MTU of the link is %d, %v", mtu, err)
				}
				ps := []rc.Packet{porttest.Packet(64, 1, 4096, 1)}
				from.Send(port.Span{To: from.To(to), Packets: ps})
				porttest.Match(t, to.Await(0, 1), ps, from.Local())
			}
		})
	}
}

// Send fails after the interface is removed, and the port can be closed.
func TestEthernetLinkDown(t *testing.T) {
	porttest.Namespace(t, 4500)
	p, err := ethernet.Open(netip.AddrPortFrom(netip.MustParseAddr(around4), 0), veth(t, 0, 4500), ethernet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	introduce(t, p, netip.MustParseAddr(porttest.Kernel4))
	a := porttest.Fabric(func(testing.TB, int) []port.Port { return []port.Port{p} }).Start(t, 1, 1)[0]
	to, err := a.Peer(netip.MustParseAddrPort(porttest.Kernel4 + ":4791"))
	if err != nil {
		t.Fatal(err)
	}
	porttest.IP(t, "link del v0")
	for err = nil; err == nil; { // the first packets may be held for address resolution
		err = a.Shards[0].Send([]port.Span{{To: to, Packets: porttest.Run(64, 2, 100, 100)}})
		if c := a.Shards[0].Counters(); err == nil && c.Sent > 2 {
			t.Fatalf("packets are sent: %+v", c)
		}
	}
	if n, err := a.Shards[0].Receive(a.Room); n != 0 || err != nil {
		t.Errorf("received %d packets, %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Send refuses a packet beyond the link's MTU, also in a run, and sends those
// that fit.
func TestUDPLongerThanMTU(t *testing.T) {
	for name, addrs := range map[string][2]string{"IPv4": {porttest.Kernel4, around4}, "IPv6": {porttest.Kernel6, around6}} {
		t.Run(name, func(t *testing.T) {
			porttest.Namespace(t, 1500)
			p, err := ethernet.Open(netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), 0), veth(t, 0, 1500), ethernet.Options{})
			if err != nil {
				t.Fatal(err)
			}
			q, err := port.OpenUDP(netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 0), port.UDPOptions{})
			if err != nil {
				t.Fatal(errors.Join(err, p.Close()))
			}
			ends := porttest.Fabric(func(testing.TB, int) []port.Port { return []port.Port{q, p} }).Start(t, 2, 1)
			t.Cleanup(func() { _, _ = q.Close(), p.Close() })
			a, b := ends[0], ends[1]
			if mtu, err := a.LinkMTU(b.Local().Addr()); err != nil || mtu != 1500 {
				t.Errorf("the link's MTU is %d, %v", mtu, err)
			}
			fits := porttest.Run(64, 3, 1024, 8)
			for range 2 {
				err = a.Shards[0].Send([]port.Span{
					{To: a.To(b), Packets: []rc.Packet{porttest.Packet(64, 0, 2048, 1)}},
					{To: a.To(b), Packets: porttest.Run(64, 3, 2048, 2048)},
					{To: a.To(b), Packets: fits},
				})
				if !errors.Is(err, unix.EMSGSIZE) {
					t.Errorf("packets that are too long: %v", err)
				}
				porttest.Match(t, b.Await(0, 3), fits, a.Local())
			}
			if c := a.Shards[0].Counters(); c.Dropped != 2*4 || c.Sent != 2*3 || !a.Offloads().Segmentation {
				t.Errorf("%+v, %+v", c, a.Offloads())
			}
		})
	}
}
