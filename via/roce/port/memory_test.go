package port_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
)

// inMemory returns ports of a network in memory.
func inMemory(first string) porttest.Fabric {
	return func(tb testing.TB, n int) []port.Port {
		return openAll(tb, port.NewNetwork(1, 9000), first, n)
	}
}

func openAll(tb testing.TB, network *port.Network, first string, n int) []port.Port {
	tb.Helper()
	var ports []port.Port
	a := netip.MustParseAddr(first)
	for range n {
		p, err := network.Open(netip.AddrPortFrom(a, 0))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = p.Close() })
		ports = append(ports, p)
		a = a.Next()
	}
	return ports
}

func TestMemory(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { porttest.Conformance(t, inMemory("192.0.2.1")) })
	t.Run("IPv6", func(t *testing.T) { porttest.Conformance(t, inMemory("2001:db8::1")) })
}

func TestMemoryAddresses(t *testing.T) {
	network := port.NewNetwork(1, 9000)
	for _, bad := range []string{"0.0.0.0:4791", "[::]:4791", "224.0.0.1:4791"} {
		if _, err := network.Open(netip.MustParseAddrPort(bad)); err == nil {
			t.Errorf("%s is an address", bad)
		}
	}
	addr := netip.MustParseAddrPort("192.0.2.1:4791")
	for range 2 {
		p, err := network.Open(netip.MustParseAddrPort("[::ffff:192.0.2.1]:4791"))
		if err != nil || p.Local() != addr {
			t.Fatal(p.Local(), err)
		}
		if _, err := network.Open(addr); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a second port of one address: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemoryMTU(t *testing.T) {
	for _, first := range []string{"192.0.2.1", "2001:db8::1"} {
		open := porttest.Fabric(func(tb testing.TB, n int) []port.Port { return openAll(tb, port.NewNetwork(1, 1280), first, n) })
		ends := open.Start(t, 2, 1)
		a, b := ends[0], ends[1]
		headers := 28
		if a.Local().Addr().Is6() {
			headers = 48
		}
		fits := porttest.Packet(64, 1, 1280-headers-16, 1)
		err := a.Shards[0].Send([]port.Span{{To: a.To(b), Packets: []rc.Packet{porttest.Packet(64, 0, 1280-headers-15, 1), fits}}})
		if !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("a packet that is too long: %v", err)
		}
		porttest.Match(t, b.Await(0, 1), []rc.Packet{fits}, a.Local())
		if c := a.Shards[0].Counters(); c.Dropped != 1 || c.Sent != 1 {
			t.Errorf("%+v", c)
		}
	}
}

func TestMemoryOverrun(t *testing.T) {
	ends := inMemory("192.0.2.1").Start(t, 2, 1)
	a, b := ends[0], ends[1]
	const burst, bursts = 64, 20
	for range bursts {
		a.Send(port.Span{To: a.To(b), Packets: porttest.Run(64, burst, 4, 4)})
	}
	overrun := int(b.Shards[0].Counters().Overrun)
	if overrun == 0 || overrun >= burst*bursts {
		t.Fatalf("%d of %d packets found no room", overrun, burst*bursts)
	}
	b.Await(0, burst*bursts-overrun)
	a.Send(port.Span{To: a.To(b), Packets: porttest.Run(64, burst, 4, 4)})
	b.Await(0, burst)
}

// sendThrough sends packets through faults and returns the PSNs that arrive
// intact, and the number of all arrivals.
func sendThrough(t *testing.T, seed uint64, f port.Faults) (whole []int, arrived int) {
	t.Helper()
	network := port.NewNetwork(seed, 9000)
	ends := porttest.Fabric(func(tb testing.TB, n int) []port.Port { return openAll(tb, network, "192.0.2.1", n) }).Start(t, 2, 1)
	a, b := ends[0], ends[1]
	network.SetFaults(f)
	for i := range 40 {
		ps := porttest.Run(64, 50, 20, 20)
		for k := range ps {
			ps[k] = porttest.Packet(64, i*50+k, 20, 1)
		}
		a.Send(port.Span{To: a.To(b), Packets: ps})
		for porttest.Readable(t, b.Shards[0]) {
			n, err := b.Shards[0].Receive(b.Room)
			if err != nil {
				t.Fatal(err)
			}
			for k := range b.Room[:n] {
				arrived++
				if x := &b.Room[k]; b.Shards[0].Intact(x) {
					whole = append(whole, int(x.Bytes[9])<<16|int(x.Bytes[10])<<8|int(x.Bytes[11]))
				}
			}
		}
	}
	return whole, arrived
}

func TestMemoryFaults(t *testing.T) {
	const sent = 2000
	within := func(t *testing.T, what string, n, least, most int) {
		t.Helper()
		if n < least || n > most {
			t.Errorf("%s: %d, want %d to %d", what, n, least, most)
		}
	}
	t.Run("none", func(t *testing.T) {
		whole, arrived := sendThrough(t, 1, port.Faults{})
		if len(whole) != sent || arrived != sent || !slices.IsSorted(whole) {
			t.Errorf("%d of %d arrive, %d whole", arrived, sent, len(whole))
		}
	})
	t.Run("drop", func(t *testing.T) {
		whole, arrived := sendThrough(t, 1, port.Faults{Drop: 0.1})
		within(t, "arrived", arrived, sent*85/100, sent*95/100)
		if len(whole) != arrived || !slices.IsSorted(whole) {
			t.Error("more than loss happened")
		}
	})
	t.Run("duplicate", func(t *testing.T) {
		whole, arrived := sendThrough(t, 1, port.Faults{Duplicate: 0.1})
		within(t, "arrived", arrived, sent*105/100, sent*115/100)
		if len(slices.Compact(whole)) != sent {
			t.Error("more than duplication happened")
		}
	})
	t.Run("reorder", func(t *testing.T) {
		whole, arrived := sendThrough(t, 1, port.Faults{Reorder: 0.1})
		moved := 0
		for i := 1; i < len(whole); i++ {
			if whole[i] < whole[i-1] {
				moved++
			}
		}
		within(t, "moved", moved, sent*5/100, sent*15/100)
		slices.Sort(whole)
		if arrived != sent || len(slices.Compact(whole)) != sent {
			t.Error("more than reordering happened")
		}
	})
	t.Run("corrupt", func(t *testing.T) {
		whole, arrived := sendThrough(t, 1, port.Faults{Corrupt: 0.1})
		within(t, "whole", len(whole), sent*85/100, sent*95/100)
		if arrived != sent || !slices.IsSorted(whole) {
			t.Error("more than corruption happened")
		}
	})
	t.Run("lose", func(t *testing.T) {
		whole, _ := sendThrough(t, 1, port.Faults{Lose: func(from, to netip.AddrPort, b []byte) bool {
			return from != to && b[11]&1 != 0
		}})
		if len(whole) != sent/2 || slices.ContainsFunc(whole, func(psn int) bool { return psn&1 != 0 }) {
			t.Errorf("%d of %d arrive", len(whole), sent/2)
		}
	})
	t.Run("replay", func(t *testing.T) {
		f := port.Faults{Drop: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.02}
		first, _ := sendThrough(t, 7, f)
		again, _ := sendThrough(t, 7, f)
		other, _ := sendThrough(t, 8, f)
		if !slices.Equal(first, again) || slices.Equal(first, other) {
			t.Error("the faults differ with the same seed")
		}
	})
}

func TestMemoryAllocatesNothing(t *testing.T) {
	for _, first := range []string{"192.0.2.1", "2001:db8::1"} {
		porttest.Allocations(t, inMemory(first))
	}
}
