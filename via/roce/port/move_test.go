package port_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// addresses are those of the families.
var addresses = map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}

// copySocket returns the descriptor for another process, of a port with open
// shards.
func copySocket(tb testing.TB, p port.Port, shards int) int {
	tb.Helper()
	for i := range shards {
		if _, err := p.Shard(i); err != nil {
			tb.Fatal(err)
		}
	}
	fd, err := p.(port.Mover).CopySocket()
	if err != nil {
		tb.Fatal(err)
	}
	return fd
}

// adopted returns ports with the sockets of ports with some shards and other
// options, which are closed.
func adopted(addr string, shards int, before, after port.UDPOptions) porttest.Fabric {
	return func(tb testing.TB, n int) []port.Port {
		tb.Helper()
		ports := sockets(addr, before)(tb, n)
		for i, p := range ports {
			fd := copySocket(tb, p, shards)
			if err := p.Close(); err != nil {
				tb.Fatal(err)
			}
			next, err := port.AdoptUDP(fd, p.Local(), after)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = next.Close() })
			ports[i] = next
		}
		return ports
	}
}

// A port with the socket of another one is as a new one, however many shards
// that had, and with which options.
func TestAdoptedUDP(t *testing.T) {
	plain := port.UDPOptions{NoSegmentation: true, NoCoalescing: true}
	for family, addr := range addresses {
		t.Run(family, func(t *testing.T) {
			porttest.Conformance(t, adopted(addr, 1, port.UDPOptions{}, port.UDPOptions{}))
			porttest.Conformance(t, adopted(addr, 5, port.UDPOptions{}, plain))
			porttest.Conformance(t, adopted(addr, port.Shards, plain, port.UDPOptions{}))
		})
	}
}

// optionsOf returns options of the socket of shard 0.
func optionsOf(t *testing.T, p port.Port) (values []int) {
	t.Helper()
	s, err := p.Shard(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range [][2]int{
		{unix.SOL_SOCKET, unix.SO_REUSEPORT},
		{unix.SOL_SOCKET, unix.SO_REUSEADDR},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL},
		{unix.SOL_SOCKET, unix.SO_RCVBUF},
		{unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.IPPROTO_UDP, unix.UDP_GRO},
		{unix.IPPROTO_UDP, unix.UDP_SEGMENT},
	} {
		v, err := unix.GetsockoptInt(s.FD(), o[0], o[1])
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	return values
}

// While a socket moves, the address is in use, and packets wait. Afterwards it
// is in use by as many shards as are open, as that of a new port.
func TestUDPMoves(t *testing.T) {
	for family, addr := range addresses {
		t.Run(family, func(t *testing.T) {
			p := sockets(addr, port.UDPOptions{NoCoalescing: true})(t, 1)[0]
			fd := copySocket(t, p, 4)
			sender := sockets(addr, port.UDPOptions{}).Start(t, 1, 1)[0]
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if out := otherProcess(t, p.Local()); !strings.Contains(out, "address already in use") {
				t.Errorf("another process gets the address amid the move: %s", out)
			}
			to, err := sender.Peer(p.Local())
			if err != nil {
				t.Fatal(err)
			}
			var waiting []rc.Packet
			for i, qp := range []uint32{wire.GSI, 64, 65, 66, 67, wire.GSI} {
				waiting = append(waiting, porttest.Packet(qp, i, 30, 1))
				sender.Send(port.Span{To: to, Packets: waiting[i:]})
			}
			after := porttest.Fabric(func(tb testing.TB, _ int) []port.Port {
				next, err := port.AdoptUDP(fd, p.Local(), port.UDPOptions{})
				if err != nil {
					tb.Fatal(err)
				}
				tb.Cleanup(func() { _ = next.Close() })
				return []port.Port{next}
			}).Start(t, 1, 1)[0]
			porttest.Match(t, after.Await(0, len(waiting)), waiting, sender.Local())
			if got, want := optionsOf(t, after), optionsOf(t, sender); !slices.Equal(got, want) {
				t.Errorf("options %v, those of a new port are %v", got, want)
			}
			for i := range 3 {
				if _, err := after.Shard(i); err != nil {
					t.Fatal(err)
				}
				if _, err := port.OpenUDP(p.Local(), port.UDPOptions{}); !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("%d shards, another port: %v", i+1, err)
				}
			}
			if err := after.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := after.Port.(port.Mover).CopySocket(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a copy of what is closed: %v", err)
			}
			if out := otherProcess(t, p.Local()); out != "<nil>" {
				t.Errorf("another process, after all: %s", out)
			}
		})
	}
}

// A descriptor that is no UDP socket of the address is refused and closed.
func TestAdoptUDPRefuses(t *testing.T) {
	at := netip.MustParseAddrPort
	bound := func(kind int, a netip.AddrPort) int {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())})
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	connected := bound(unix.SOCK_DGRAM, at("127.0.0.1:0"))
	if err := unix.Connect(connected, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	device, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, fd := range map[string]int{
		"stream": bound(unix.SOCK_STREAM, at("127.0.0.1:0")), "another address": bound(unix.SOCK_DGRAM, at("127.0.0.2:0")),
		"connected": connected, "device": device,
	} {
		local := at("127.0.0.1:4791")
		if s, err := unix.Getsockname(fd); err == nil {
			local = netip.AddrPortFrom(local.Addr(), uint16(s.(*unix.SockaddrInet4).Port))
		}
		if p, err := port.AdoptUDP(fd, local, port.UDPOptions{}); err == nil {
			t.Errorf("%s: adopted", name)
			_ = p.Close()
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: the descriptor is open: %v", name, err)
		}
	}
}
