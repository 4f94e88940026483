package port_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
)

// Link-local addresses have the zone of the port.
func TestUDPLinkLocal(t *testing.T) {
	open := func(tb testing.TB, n int) []port.Port {
		porttest.Namespace(tb, 4500)
		porttest.Address(tb, "br0", "fe80::1/64")
		return sockets("fe80::1%br0", port.UDPOptions{})(tb, n)
	}
	porttest.Conformance(t, open)
	t.Run("Alloc", func(t *testing.T) { porttest.Allocations(t, open) })
}

// A sender with a full send buffer waits for a bounded time, drops and counts
// the packets.
func TestUDPSendBufferFull(t *testing.T) {
	porttest.Namespace(t, 9000)
	porttest.IP(t, "link add d0 mtu 9000 type veth peer name d1", "link set d1 up", "link set d0 up")
	porttest.Address(t, "d0", "198.51.100.1/24")
	p, err := port.OpenUDP(netip.MustParseAddrPort("198.51.100.1:4791"), port.UDPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := porttest.Fabric(func(testing.TB, int) []port.Port { return []port.Port{p} }).Start(t, 1, 1)[0]
	t.Cleanup(func() { _ = p.Close() })
	if err := unix.SetsockoptInt(a.Shards[0].FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 16384); err != nil {
		t.Fatal(err)
	}
	absent, err := a.Peer(netip.MustParseAddrPort("198.51.100.2:4791")) // packets wait for address resolution
	if err != nil {
		t.Fatal(err)
	}
	var packets []rc.Packet
	for i := range 100 {
		packets = append(packets, porttest.Packet(64, i, 4096, 1))
	}
	if err := a.Shards[0].Send([]port.Span{{To: absent, Packets: packets}}); err != nil {
		t.Error(err)
	}
	c := a.Shards[0].Counters()
	if c.Sent == 0 || c.Dropped == 0 || c.Sent+c.Dropped != 100 {
		t.Errorf("%+v", c)
	}
}
