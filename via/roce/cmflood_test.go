package roce_test

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/wire"
)

// managed returns what the endpoint at an address has counted at queue pair 1.
func managed(t *testing.T, p *roce.Provider, host string) roce.EndpointStatistics {
	t.Helper()
	for _, e := range p.Statistics() {
		if e.Local.String() == host {
			return e
		}
	}
	t.Fatalf("no endpoint at %s", host)
	return roce.EndpointStatistics{}
}

// idleListener returns the address of a listener without connections.
func idleListener(t *testing.T, p *roce.Provider) string {
	t.Helper()
	x := openNIC(t, p, "")
	host := freePort(t, "127.0.0.1")
	l, err := x.Listen(via.Address{Host: host, Discriminator: "idle"})
	check(t, err)
	t.Cleanup(func() {
		check(t, l.Close())
		check(t, x.Close())
	})
	return host
}

// The endpoint processes a whole burst at queue pair 1 at once: no file
// descriptor signals the packets that a port has already taken from its socket.
func TestBurstAtQueuePairOne(t *testing.T) {
	p := roce.New(roce.Options{})
	host := idleListener(t, p)
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(host))
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: to.IP})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	raw, err := c.SyscallConn()
	check(t, err)
	var icrc wire.ICRC
	icrc.Set(c.LocalAddr().(*net.UDPAddr).AddrPort(), to.AddrPort())

	// Management datagrams of an unknown class, in runs that the receiver may
	// coalesce.
	const runs, run = 40, 60
	packet := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
		Payload: make([]byte, wire.MADSize),
	}
	var burst []byte
	for i := range run {
		burst = packet.Append(burst, &icrc, wire.Identification{ID: uint16(i)})
	}
	check(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(burst)/run)
	}))
	check(t, err)
	for sent := uint64(0); sent < 3*runs*run; {
		for range runs {
			_, err := c.WriteToUDP(burst, to)
			check(t, err)
			sent += run
		}
		within(t, "all packets to be processed", func() bool {
			s := managed(t, p, host)
			return s.Manager.Received+s.CM.Damaged+s.CMPort.Overrun == sent
		})
	}
	if s := managed(t, p, host); s.Manager.Received == 0 || s.Manager.Malformed != s.Manager.Received || s.CM != (roce.ShardCounters{}) {
		t.Errorf("counters %+v, %+v", s.Manager, s.CM)
	}
}

// Counters count all packets that queue pair 1 drops.
func TestDropCountersAtQueuePairOne(t *testing.T) {
	p := roce.New(roce.Options{})
	host := idleListener(t, p)
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(host))
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: to.IP})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	var icrc wire.ICRC
	icrc.Set(c.LocalAddr().(*net.UDPAddr).AddrPort(), to.AddrPort())
	packet := func(qp uint32, version uint8) []byte {
		h := wire.Packet{
			BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: qp},
			DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
			Payload: make([]byte, wire.MADSize),
		}
		if version != 0 {
			h.PKey = 0x1234
		}
		return h.Append(nil, &icrc, wire.Identification{})
	}
	damaged := packet(wire.GSI, 0)
	damaged[40] ^= 1
	want := roce.ShardCounters{Unknown: 2, Damaged: 3, Refused: 4}
	for _, x := range []struct {
		bytes []byte
		times uint64
	}{{packet(0x12_3440, 0), want.Unknown}, {damaged, want.Damaged}, {packet(wire.GSI, 1), want.Refused}, {make([]byte, 7), 5}} {
		for range x.times {
			_, err := c.WriteToUDP(x.bytes, to)
			check(t, err)
		}
	}
	within(t, "the counters", func() bool {
		s := managed(t, p, host)
		return s.CM == want && s.CMPort.Malformed == 5
	})
}
