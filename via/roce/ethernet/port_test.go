package ethernet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/ethernet"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub repeats every frame of a station, a datagram, to all others.
type hub struct {
	sides    []*net.UDPConn
	stations []netip.AddrPort
	readers  sync.WaitGroup
}

// newHub returns a hub with n sockets, one per station.
func newHub(tb testing.TB, n int) *hub {
	tb.Helper()
	h := new(hub)
	for range n {
		side := listen(tb, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		station := listen(tb, unusedHost()) // for its address
		h.stations = append(h.stations, station.LocalAddr().(*net.UDPAddr).AddrPort())
		if err := station.Close(); err != nil {
			tb.Fatal(err)
		}
		h.sides = append(h.sides, side)
	}
	for i := range n {
		h.readers.Go(func() {
			porttest.Pin(tb)
			h.repeat(i)
		})
	}
	tb.Cleanup(func() {
		for _, s := range h.sides {
			_ = s.Close()
		}
		h.readers.Wait()
	})
	return h
}

// unusedHost returns an address at which no other process gets a port in the
// moment between two sockets.
func unusedHost() netip.Addr {
	return netip.AddrFrom4([4]byte{127, 128 + byte(rand.N(64)), byte(rand.N(256)), byte(1 + rand.N(254))})
}

func listen(tb testing.TB, at netip.Addr) *net.UDPConn {
	tb.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(c.SetReadBuffer(4<<20), c.SetWriteBuffer(4<<20)); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (h *hub) repeat(from int) {
	b := make([]byte, 1<<16)
	for {
		n, _, err := h.sides[from].ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		for i, to := range h.stations {
			if i != from {
				_, _ = h.sides[i].WriteToUDPAddrPort(b[:n], to)
			}
		}
	}
}

// link returns the link of a station.
func (h *hub) link(tb testing.TB, i int) *ethernet.Link {
	tb.Helper()
	l, err := ethernet.DatagramLink(h.stations[i], h.sides[i].LocalAddr().(*net.UDPAddr).AddrPort())
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// frames returns ports of frames around a hub.
func frames(first string) porttest.Fabric {
	return func(tb testing.TB, n int) []port.Port {
		tb.Helper()
		h := newHub(tb, n)
		var ports []port.Port
		a := netip.MustParseAddr(first)
		for i := range n {
			p, err := ethernet.Open(netip.AddrPortFrom(a, 0), h.link(tb, i), ethernet.Options{MTU: 4500})
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = p.Close() })
			ports = append(ports, p)
			a = a.Next()
		}
		return ports
	}
}

func TestEthernet(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { porttest.Conformance(t, frames("192.0.2.1")) })
	t.Run("IPv6", func(t *testing.T) { porttest.Conformance(t, frames("2001:db8::1")) })
	t.Run("link-local", func(t *testing.T) { porttest.Conformance(t, frames("fe80::1%lo")) })
}

func TestEthernetAllocatesNothing(t *testing.T) {
	for _, first := range []string{"192.0.2.1", "2001:db8::1"} {
		porttest.Allocations(t, frames(first))
	}
}

func TestEthernetOptions(t *testing.T) {
	h := newHub(t, 1)
	good := netip.MustParseAddrPort("192.0.2.1:4791")
	for _, c := range []struct {
		addr netip.AddrPort
		o    ethernet.Options
	}{
		{netip.MustParseAddrPort("0.0.0.0:4791"), ethernet.Options{}},
		{good, ethernet.Options{HardwareAddr: make(net.HardwareAddr, 5)}},
		{good, ethernet.Options{HardwareAddr: net.HardwareAddr{1, 0, 0, 0, 0, 0}}},
	} {
		// Open owns the link, and closes it on error.
		if p, err := ethernet.Open(c.addr, h.link(t, 0), c.o); err == nil {
			t.Errorf("%v, %+v is a port", c.addr, c.o)
			_ = p.Close()
		}
	}
	p, err := ethernet.Open(netip.AddrPortFrom(good.Addr(), 0), h.link(t, 0), ethernet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Local() != good {
		t.Errorf("the port is at %v", p.Local())
	}
	if mtu, err := p.LinkMTU(netip.MustParseAddr("192.0.2.2")); mtu != 1500 || err != nil {
		t.Errorf("the MTU is %d, %v", mtu, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Peer(netip.MustParseAddrPort("192.0.2.2:4791")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("peer of a closed port: %v", err)
	}
	for _, name := range []string{"nosuch0", "lo"} {
		if _, err := ethernet.InterfaceLink(name); err == nil {
			t.Errorf("%s is an Ethernet interface", name)
		}
	}
}

// Send waits for a full link for a bounded time, and drops the remaining
// packets.
func TestEthernetSendBufferFull(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fds[1]) }()
	link, err := ethernet.TapLink(fds[0]) // behaves like a tap device
	if err != nil {
		t.Fatal(err)
	}
	p, err := ethernet.Open(netip.MustParseAddrPort("192.0.2.1:4791"), link, ethernet.Options{HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	l, err := p.Shard(0)
	if err != nil {
		t.Fatal(err)
	}
	to, err := p.Peer(netip.MustParseAddrPort("192.0.2.2:4791"))
	if err != nil {
		t.Fatal(err)
	}
	// The first frames are the ARP request for the peer and, after the reply,
	// the packet held for it.
	answer := "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x06" + "\x00\x01\x08\x00\x06\x04\x00\x02\x02\x00\x00\x00\x00\x02\xc0\x00\x02\x02\x02\x00\x00\x00\x00\x01\xc0\x00\x02\x01"
	if err := l.Send([]port.Span{{To: to, Packets: porttest.Run(64, 1, 100, 100)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fds[1], []byte(answer)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 2000); b[12] != 0x08 || b[13] != 0; {
		if _, err := unix.Read(fds[1], b); err != nil {
			t.Fatal(err)
		}
	}
	sent := uint64(1)
	for l.Counters().Dropped == 0 && sent < 100_000 {
		if err := l.Send([]port.Span{{To: to, Packets: porttest.Run(64, 64, 100, 100)}}); err != nil {
			t.Fatal(err)
		}
		sent += 64
	}
	if c := l.Counters(); c.Dropped == 0 || c.Sent+c.Dropped != sent {
		t.Errorf("%+v", c)
	}
	long := []rc.Packet{porttest.Packet(64, 1, 1500-28-16+1, 1)}
	if err := l.Send([]port.Span{{To: to, Packets: long}}); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet beyond the MTU: %v", err)
	}
}

func BenchmarkEthernet(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { porttest.Benchmark(b, frames("2001:db8::1"), size, true) })
	}
}
