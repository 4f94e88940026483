package port_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
)

// Addresses of the kernel in a namespace, and the first of those around it.
const (
	kernel4, around4 = "192.0.2.1", "192.0.2.2"
	kernel6, around6 = "2001:db8::1", "2001:db8::2"
)

// namespace moves the test's goroutine to a network of its own: a bridge with the
// kernel's addresses. It is gone when the test ends, with its thread.
func namespace(tb testing.TB, mtu int) {
	tb.Helper()
	runtime.LockOSThread() // for good
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		tb.Skipf("no network namespace: %v", err)
	}
	ip(tb,
		"link set lo up",
		fmt.Sprintf("link add br0 mtu %d type bridge mcast_snooping 0", mtu),
		"link set br0 addrgenmode none up",
	)
	address(tb, "br0", kernel4+"/24", kernel6+"/64")
}

// address gives addresses to an interface. Until the kernel has made a route to
// one, which is not at once with IPv6, it looks for its own address outside.
func address(tb testing.TB, name string, prefixes ...string) {
	tb.Helper()
	for _, prefix := range prefixes {
		ip(tb, fmt.Sprintf("addr add %s dev %s nodad", prefix, name))
		family, addr := "-4", netip.MustParsePrefix(prefix).Addr()
		if addr.Is6() {
			family = "-6"
		}
		await(tb, fmt.Sprintf("local %v dev %s", addr, name), func() {}, family, "route", "show", "table", "local")
	}
}

// await repeats a command of iproute2 until it says something.
func await(tb testing.TB, want string, before func(), command ...string) {
	tb.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		before()
		out, err := exec.Command("ip", command...).CombinedOutput()
		if err != nil {
			tb.Fatalf("ip: %v: %s", err, out)
		}
		if strings.Contains(string(out), want) {
			return
		}
	}
	tb.Fatalf("ip %s does not say %q", strings.Join(command, " "), want)
}

// ip runs commands of iproute2.
func ip(tb testing.TB, commands ...string) {
	tb.Helper()
	c := exec.Command("ip", "-batch", "-")
	c.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("ip: %v: %s", err, out)
	}
}

// veth returns a link to the bridge by a pair of interfaces.
func veth(tb testing.TB, i, mtu int) *port.FrameLink {
	tb.Helper()
	name, peer := fmt.Sprintf("v%d", i), fmt.Sprintf("p%d", i)
	ip(tb,
		fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d", name, mtu, peer, mtu),
		fmt.Sprintf("link set %s addrgenmode none up", name),
		fmt.Sprintf("link set %s addrgenmode none master br0 up", peer),
	)
	l, err := port.InterfaceLink(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// tap returns a link to the bridge by a tap device.
func tap(tb testing.TB, i, mtu int) *port.FrameLink {
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
	ip(tb, fmt.Sprintf("link set %s mtu %d addrgenmode none master br0 up", name, mtu))
	l, err := port.TapLink(fd)
	if err != nil {
		tb.Fatal(errors.Join(err, unix.Close(fd)))
	}
	return l
}

// besideKernel returns ports of frames and of the kernel's sockets that talk to
// each other; the first is of the kernel's, or the only one that is not.
func besideKernel(kernel, around string, kernelFirst bool, link func(testing.TB, int, int) *port.FrameLink) fabric {
	const mtu = 4500
	return func(tb testing.TB, n int) []port.Port {
		tb.Helper()
		namespace(tb, mtu)
		var ports []port.Port
		a := netip.MustParseAddr(around)
		for i := range n {
			var p port.Port
			var err error
			if (i == 0) == kernelFirst {
				p, err = port.OpenUDP(netip.AddrPortFrom(netip.MustParseAddr(kernel), 0), port.UDPOptions{})
			} else {
				p, err = port.OpenFrames(netip.AddrPortFrom(a, 0), link(tb, i, mtu), port.FrameOptions{MTU: mtu})
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

// introduce makes a port of frames known to the kernel, which would else ask for
// it, and let the packet that waits for the answer be overtaken by the next one.
func introduce(tb testing.TB, p port.Port, kernel netip.Addr) {
	tb.Helper()
	if p.Local().Addr() == kernel {
		return
	}
	await(tb, "lladdr", func() {
		if _, err := p.Peer(netip.AddrPortFrom(kernel, 9)); err != nil { // asks for the kernel, and again
			tb.Fatal(err)
		}
	}, "neighbour", "show", p.Local().Addr().String())
}

// The kernel's UDP and this package's: each understands the other's headers, IP
// identifications and runs of packets, and finds where the other is.
func TestFramesBesideKernel(t *testing.T) {
	for _, link := range []struct {
		name string
		open func(testing.TB, int, int) *port.FrameLink
	}{{"veth", veth}, {"tap", tap}} {
		for _, family := range []struct{ name, kernel, around string }{{"IPv4", kernel4, around4}, {"IPv6", kernel6, around6}} {
			for _, kernelFirst := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, kernel first %v", link.name, family.name, kernelFirst), func(t *testing.T) {
					conformance(t, besideKernel(family.kernel, family.around, kernelFirst, link.open))
				})
			}
		}
	}
}

// A port of frames answers to ping, also to a long one.
func TestFramesPing(t *testing.T) {
	for _, family := range []struct {
		name, kernel, around, network string
		request, answer               byte
	}{
		{"IPv4", kernel4, around4, "ip4:icmp", 8, 0},
		{"IPv6", kernel6, around6, "ip6:ipv6-icmp", 128, 129},
	} {
		t.Run(family.name, func(t *testing.T) {
			namespace(t, 1500)
			p, err := port.OpenFrames(netip.AddrPortFrom(netip.MustParseAddr(family.around), 0), veth(t, 0, 1500), port.FrameOptions{})
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
				binary.BigEndian.PutUint16(ping[2:], internetChecksum(ping)) // the kernel's to do with IPv6
				if _, err := c.WriteTo(ping, to); err != nil {
					t.Fatal(err)
				}
				if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
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

// internetChecksum is that of RFC 1071, as it stands there.
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
// cover. A packet leaves the link by way of the gateway.
func TestFramesAcrossRouter(t *testing.T) {
	for _, family := range []struct{ name, near, far, nearGateway, farGateway string }{
		{"IPv4", around4 + "/24", "198.51.100.2/24", kernel4, "198.51.100.1"},
		{"IPv6", around6 + "/64", "2001:db8:1::2/64", kernel6, "2001:db8:1::1"},
	} {
		t.Run(family.name, func(t *testing.T) {
			namespace(t, 4500)
			for _, forward := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
				if err := os.WriteFile("/proc/sys/net/"+forward, []byte("1"), 0); err != nil {
					t.Skipf("the kernel does not route: %v", err)
				}
			}
			near, far := veth(t, 0, 4500), veth(t, 1, 4500)
			ip(t, "link set p1 nomaster")
			address(t, "p1", "198.51.100.1/24", "2001:db8:1::1/64", "fe80::1/64") // a router asks from the last one
			open := func(addr, gateway string, link *port.FrameLink, mac ...byte) port.Port {
				prefix := netip.MustParsePrefix(addr)
				p, err := port.OpenFrames(netip.AddrPortFrom(prefix.Addr(), 0), link, port.FrameOptions{
					Prefix: prefix, Gateway: netip.MustParseAddr(gateway), HardwareAddr: mac,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Close() })
				return p
			}
			ends := fabric(func(testing.TB, int) []port.Port {
				return []port.Port{open(family.near, family.nearGateway, near), open(family.far, family.farGateway, far, 2, 0, 0, 0, 0, 7)}
			}).start(t, 2, 1)
			for i, from := range ends {
				to := ends[1-i]
				if mtu, err := from.LinkMTU(to.Local().Addr()); mtu != 4500 || err != nil {
					t.Errorf("the MTU of the link is %d, %v", mtu, err)
				}
				ps := []rc.Packet{packet(64, 1, 4096, 1)}
				from.send(port.Span{To: from.to(to), Packets: ps})
				match(t, to.await(0, 1), ps, from.Local())
			}
		})
	}
}

// A link that is gone takes nothing, and does not keep the port from closing.
func TestFramesWithoutLink(t *testing.T) {
	namespace(t, 4500)
	p, err := port.OpenFrames(netip.AddrPortFrom(netip.MustParseAddr(around4), 0), veth(t, 0, 4500), port.FrameOptions{})
	if err != nil {
		t.Fatal(err)
	}
	introduce(t, p, netip.MustParseAddr(kernel4))
	a := fabric(func(testing.TB, int) []port.Port { return []port.Port{p} }).start(t, 1, 1)[0]
	to, err := a.Peer(netip.MustParseAddrPort(kernel4 + ":4791"))
	if err != nil {
		t.Fatal(err)
	}
	ip(t, "link del v0")
	for err = nil; err == nil; { // the first may wait for an answer
		err = a.lanes[0].Send([]port.Span{{To: to, Packets: run(64, 2, 100, 100)}})
		if c := a.lanes[0].Counters(); err == nil && c.Sent > 2 {
			t.Fatalf("packets are sent: %+v", c)
		}
	}
	if n, err := a.lanes[0].Receive(a.room); n != 0 || err != nil {
		t.Errorf("received %d packets, %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Addresses of one link have a zone, the same for all who use the port.
func TestUDPLinkLocal(t *testing.T) {
	open := func(tb testing.TB, n int) []port.Port {
		namespace(tb, 4500)
		address(tb, "br0", "fe80::1/64")
		return sockets("fe80::1%br0", port.UDPOptions{})(tb, n)
	}
	conformance(t, open)
	t.Run("Alloc", func(t *testing.T) { testAllocations(t, open) })
}

// A packet that is longer than the link's MTU is refused, in a run too, and those
// that fit are not.
func TestUDPLongerThanLink(t *testing.T) {
	for name, addrs := range map[string][2]string{"IPv4": {kernel4, around4}, "IPv6": {kernel6, around6}} {
		t.Run(name, func(t *testing.T) {
			namespace(t, 1500)
			p, err := port.OpenFrames(netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), 0), veth(t, 0, 1500), port.FrameOptions{})
			if err != nil {
				t.Fatal(err)
			}
			q, err := port.OpenUDP(netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 0), port.UDPOptions{})
			if err != nil {
				t.Fatal(errors.Join(err, p.Close()))
			}
			ends := fabric(func(testing.TB, int) []port.Port { return []port.Port{q, p} }).start(t, 2, 1)
			t.Cleanup(func() { _, _ = q.Close(), p.Close() })
			a, b := ends[0], ends[1]
			if mtu, err := a.LinkMTU(b.Local().Addr()); err != nil || mtu != 1500 {
				t.Errorf("the link's MTU is %d, %v", mtu, err)
			}
			fits := run(64, 3, 1024, 8)
			for range 2 {
				err = a.lanes[0].Send([]port.Span{
					{To: a.to(b), Packets: []rc.Packet{packet(64, 0, 2048, 1)}},
					{To: a.to(b), Packets: run(64, 3, 2048, 2048)},
					{To: a.to(b), Packets: fits},
				})
				if !errors.Is(err, unix.EMSGSIZE) {
					t.Errorf("packets that are too long: %v", err)
				}
				match(t, b.await(0, 3), fits, a.Local())
			}
			if c := a.lanes[0].Counters(); c.Dropped != 2*4 || c.Sent != 2*3 || !a.Offloads().Segmentation {
				t.Errorf("%+v, %+v", c, a.Offloads())
			}
		})
	}
}

// A sender whose packets find no way out of the host waits for a moment and goes
// on, and counts.
func TestUDPWithoutRoom(t *testing.T) {
	namespace(t, 9000)
	ip(t, "link add d0 mtu 9000 type veth peer name d1", "link set d1 up", "link set d0 up")
	address(t, "d0", "198.51.100.1/24")
	p, err := port.OpenUDP(netip.MustParseAddrPort("198.51.100.1:4791"), port.UDPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := fabric(func(testing.TB, int) []port.Port { return []port.Port{p} }).start(t, 1, 1)[0]
	t.Cleanup(func() { _ = p.Close() })
	if err := unix.SetsockoptInt(a.lanes[0].FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 16384); err != nil {
		t.Fatal(err)
	}
	nobody, err := a.Peer(netip.MustParseAddrPort("198.51.100.2:4791")) // packets wait for its address
	if err != nil {
		t.Fatal(err)
	}
	var packets []rc.Packet
	for i := range 100 {
		packets = append(packets, packet(64, i, 4096, 1))
	}
	if err := a.lanes[0].Send([]port.Span{{To: nobody, Packets: packets}}); err != nil {
		t.Error(err)
	}
	c := a.lanes[0].Counters()
	if c.Sent == 0 || c.Dropped == 0 || c.Sent+c.Dropped != 100 {
		t.Errorf("%+v", c)
	}
}
