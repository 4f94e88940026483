package port_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(openHere); addr != "" {
		p, err := port.OpenUDP(netip.MustParseAddrPort(addr), port.UDPOptions{})
		if err == nil {
			err = p.Close()
		}
		fmt.Print(err)
		return
	}
	goleak.VerifyTestMain(m)
}

// sockets returns ports of UDP sockets at one address.
func sockets(addr string, o port.UDPOptions) porttest.Fabric {
	return func(tb testing.TB, n int) []port.Port {
		tb.Helper()
		var ports []port.Port
		for range n {
			p, err := port.OpenUDP(netip.AddrPortFrom(netip.MustParseAddr(addr), 0), o)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = p.Close() })
			ports = append(ports, p)
		}
		return ports
	}
}

// kinds returns the kinds of sockets to test.
func kinds() map[string]porttest.Fabric {
	all := make(map[string]porttest.Fabric)
	for family, addr := range map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"} {
		for _, o := range []port.UDPOptions{{}, {NoSegmentation: true}, {NoCoalescing: true}, {NoSegmentation: true, NoCoalescing: true}} {
			all[fmt.Sprintf("%s, segmentation %v, coalescing %v", family, !o.NoSegmentation, !o.NoCoalescing)] = sockets(addr, o)
		}
	}
	return all
}

func TestUDP(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) { porttest.Conformance(t, open) })
	}
}

func TestUDPAllocatesNothing(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) { porttest.Allocations(t, open) })
	}
}

// The packets of every queue pair arrive at its shard.
func TestUDPSteersByQueuePair(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) {
			ends := open.Start(t, 2, port.Shards)
			a, b := ends[0], ends[1]
			rng := rand.New(rand.NewPCG(1, 2))
			want := make([][]rc.Packet, port.Shards)
			for i := range 10 * port.Shards {
				qp := 1 + rng.Uint32N(1<<24-1)
				p := porttest.Packet(qp, i, 30, 1)
				want[port.ShardOf(qp)] = append(want[port.ShardOf(qp)], p)
				a.Send(port.Span{To: a.To(b), Packets: []rc.Packet{p}})
			}
			for i := range want {
				porttest.Match(t, b.Await(i, len(want[i])), want[i], a.Local())
			}
		})
	}
}

func TestUDPAddressInUse(t *testing.T) {
	for family, addr := range map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"} {
		t.Run(family, func(t *testing.T) {
			p := sockets(addr, port.UDPOptions{})(t, 1)[0]
			for i := range 5 {
				if _, err := p.Shard(i); err != nil {
					t.Fatal(err)
				}
				_, err := port.OpenUDP(p.Local(), port.UDPOptions{})
				if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "another process has it") {
					t.Errorf("%d shards, another port: %v", i+1, err)
				}
				if i%4 != 0 {
					continue // starting a process is slow
				}
				if out := otherProcess(t, p.Local()); !strings.Contains(out, "address already in use") {
					t.Errorf("%d shards, another process: %s", i+1, out)
				}
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if out := otherProcess(t, p.Local()); out != "<nil>" {
				t.Errorf("another process, after all: %s", out)
			}
		})
	}
}

// openHere makes the process that otherProcess starts open a port.
const openHere = "VIABLK_PORT_OPEN"

// otherProcess returns the error of another process that opens a port.
func otherProcess(t *testing.T, addr netip.AddrPort) string {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), openHere+"="+addr.String())
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestUDPAddresses(t *testing.T) {
	for _, bad := range []string{"0.0.0.0:4791", "[::]:4791", "[fe80::1]:4791", "[fe80::1%nosuch0]:4791", "192.0.2.1:4791", "[2001:db8::1]:4791"} {
		p, err := port.OpenUDP(netip.MustParseAddrPort(bad), port.UDPOptions{})
		if err == nil {
			t.Errorf("a port is at %v", p.Local())
			_ = p.Close()
		}
	}
	p, err := port.OpenUDP(netip.MustParseAddrPort("[::ffff:127.0.0.1]:0"), port.UDPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if a := p.Local(); a.Addr() != netip.MustParseAddr("127.0.0.1") || a.Port() == 0 {
		t.Errorf("the port is at %v", a)
	}
	if mtu, err := p.LinkMTU(netip.MustParseAddr("::ffff:127.0.0.2")); mtu != 65536 && mtu != 65535 || err != nil {
		t.Errorf("the MTU of loopback is %d, %v", mtu, err)
	}
	if _, err := p.LinkMTU(netip.IPv6Loopback()); err == nil {
		t.Error("an IPv4 port has an MTU to IPv6")
	}
}

// Malformed datagrams are counted and dropped, and packets between them arrive.
func TestUDPMalformed(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) {
			ends := open.Start(t, 2, 2)
			a, b := ends[0], ends[1]
			other, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(b.Local()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close() }()
			malformed := 0
			for i, n := range []int{0, 1, 7, 15, wire.MaxPacket + 1, 5000, 65507} {
				if _, err := other.Write(make([]byte, n)); err != nil {
					t.Fatal(err)
				}
				malformed++
				ps := []rc.Packet{porttest.Packet(64, i, 20, 1)}
				a.Send(port.Span{To: a.To(b), Packets: ps})
				porttest.Match(t, b.Await(0, 1), ps, a.Local())
			}
			for _, run := range []struct{ size, bytes, malformed int }{
				{12, 36, 3}, {5000, 15000, 3}, {20, 60 + 15, 1},
			} {
				control := make([]byte, unix.CmsgSpace(2))
				h := &unix.Cmsghdr{Level: unix.IPPROTO_UDP, Type: unix.UDP_SEGMENT}
				h.SetLen(unix.CmsgLen(2))
				binary.NativeEndian.PutUint64(control, h.Len)
				binary.NativeEndian.PutUint32(control[8:], uint32(h.Level))
				binary.NativeEndian.PutUint32(control[12:], uint32(h.Type))
				binary.NativeEndian.PutUint16(control[16:], uint16(run.size))
				if _, _, err := other.WriteMsgUDP(make([]byte, run.bytes), control, nil); err != nil {
					t.Fatal(err)
				}
				malformed += run.malformed
			}
			for b.Shards[0].Counters().Malformed < uint64(malformed) {
				if n, err := b.Shards[0].Receive(b.Room); err != nil {
					t.Fatal(err)
				} else if n == 0 && b.Shards[0].Counters().Malformed < uint64(malformed) {
					porttest.Sleep(t, b.Shards[0])
				}
			}
			c := b.Shards[0].Counters()
			if c.Malformed != uint64(malformed) || c.Received != 7+3 || b.Shards[1].Counters() != (port.Counters{}) {
				t.Errorf("%d malformed datagrams: %+v, %+v", malformed, c, b.Shards[1].Counters())
			}
		})
	}
}

// A device without segmentation fails the first run. The port then sends the
// packets singly, each with the ICRC of a single packet, and segments no more.
func TestUDPSegmentationFallback(t *testing.T) {
	for family, open := range map[string]porttest.Fabric{
		"IPv4": sockets("127.0.0.1", port.UDPOptions{}), "IPv6": sockets("::1", port.UDPOptions{}),
	} {
		t.Run(family, func(t *testing.T) {
			ends := open.Start(t, 2, 1)
			a, b := ends[0], ends[1]
			level, name := unix.SOL_SOCKET, unix.SO_NO_CHECK
			if family == "IPv6" {
				level, name = unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX
			}
			// Runs need checksums.
			if err := unix.SetsockoptInt(a.Shards[0].FD(), level, name, 1); err != nil {
				t.Fatal(err)
			}
			if !a.Offloads().Segmentation || !b.Offloads().Coalescing {
				t.Skip("the kernel has no UDP_SEGMENT or no UDP_GRO")
			}
			first := []rc.Packet{porttest.Packet(64, 1, 99, 1)}
			second, third := porttest.Run(64, 64, 100, 50), porttest.Run(64, 40, 100, 50)
			a.Send(port.Span{To: a.To(b), Packets: first}, port.Span{To: a.To(b), Packets: second}, port.Span{To: a.To(b), Packets: third})
			porttest.Match(t, b.Await(0, 1+64+40), slices.Concat(first, second, third), a.Local())
			if a.Offloads().Segmentation {
				t.Error("the port still segments")
			}
			if c := a.Shards[0].Counters(); c.Sent != 1+64+40 || c.Dropped != 0 {
				t.Errorf("%+v", c)
			}
			a.Send(port.Span{To: a.To(b), Packets: third})
			porttest.Match(t, b.Await(0, 40), third, a.Local())
		})
	}
}

func TestUDPOverrun(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) {
			ends := open.Start(t, 2, 1)
			a, b := ends[0], ends[1]
			count := 2 * b.ReceiveRoom()
			for i := range count {
				a.Send(port.Span{To: a.To(b), Packets: []rc.Packet{porttest.Packet(64, i, 4096, 1)}})
			}
			got := 0
			for {
				n, err := b.Shards[0].Receive(b.Room)
				if err != nil {
					t.Fatal(err)
				}
				if got += n; n == 0 {
					break
				}
			}
			a.Send(port.Span{To: a.To(b), Packets: []rc.Packet{porttest.Packet(64, count, 0, 0)}})
			b.Await(0, 1) // its control message has the overrun count
			if lost := b.Shards[0].Counters().Overrun; got < b.ReceiveRoom() || got == count || lost != uint64(count-got) {
				t.Errorf("%d of %d packets arrived, %d overran", got, count, lost)
			}
		})
	}
}
