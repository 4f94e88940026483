package roce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// udpPort returns a UDP port of this host that is open or closed.
func udpPort(t *testing.T, open bool) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	if !open {
		_ = c.Close() // nothing was sent
	} else {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestPortCheck: a link ends if its peer's port is closed, and if nothing of
// the peer arrived meanwhile: an ICMP message alone, which any host can send,
// ends none.
func TestPortCheck(t *testing.T) {
	for name, row := range map[string]struct{ open, lives, ends bool }{
		"closed port":                 {ends: true},
		"closed port of a living one": {lives: true},
		"open port":                   {open: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &link{shard: newShard(nil, 1, nil), endpoint: &endpoint{local: netip.MustParseAddrPort("127.0.0.1:0")}}
			to := udpPort(t, row.open)
			var p portChecks
			if row.lives {
				l.life.Store(1)
			}
			p.add(l, to, 0, clock())
			p.add(l, to, 0, clock()) // it is in the check, or that has ended
			p.all.Wait()
			if d := l.notices.disconnected.Load(); (d != nil && d.gone) != row.ends {
				t.Errorf("the link ends: %v", d != nil)
			}
			p.end()
			p.add(l, to, 0, clock()+time.Hour)
			p.all.Wait() // none began
		})
	}
}

// TestPortCheckRests: of an address that answers nothing there is a check now
// and then, and one table entry while it may matter.
func TestPortCheckRests(t *testing.T) {
	l := &link{shard: newShard(nil, 1, nil), endpoint: &endpoint{local: netip.MustParseAddrPort("127.0.0.1:0")}}
	var p portChecks
	to := udpPort(t, true)
	p.add(l, to, 0, clock())
	p.all.Wait()
	p.mu.Lock()
	rests := p.running[to].until
	p.mu.Unlock()
	p.add(l, to, 0, rests-1)
	p.mu.Lock()
	if c := p.running[to]; c.until != rests || len(c.links) != 0 {
		t.Error("another check begins too soon")
	}
	p.mu.Unlock()
	p.add(l, to, 0, rests+1)
	p.mu.Lock()
	if p.running[to].until == rests {
		t.Error("no other check begins")
	}
	p.mu.Unlock()
	p.end()
}

// TestPortCheckIsRoCE: the packets of a check have the ICRC that their IP
// headers ask for, so that no adapter counts them as damaged.
func TestPortCheckIsRoCE(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	// An address of its own keeps the packets of other tests out of the socket.
	to := netip.AddrPortFrom(netip.MustParseAddr("127.77.0.2"), udpPort(t, false).Port())
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort("127.77.0.1:0")
	l := &link{shard: newShard(nil, 1, nil), endpoint: &endpoint{local: from}}
	var p portChecks
	p.add(l, to, 0, clock())
	p.all.Wait()
	for range portCheckSockets {
		var b [200]byte
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		if err != nil || n < 28 || binary.BigEndian.Uint16(b[22:]) != to.Port() {
			t.Fatalf("no packet of the check, but %d bytes: %v", n, err)
		}
		var icrc wire.ICRC
		icrc.Set(netip.AddrPortFrom(from.Addr(), binary.BigEndian.Uint16(b[20:])), to)
		id := wire.Identification{ID: binary.BigEndian.Uint16(b[4:]), MayFragment: b[6]&0x40 == 0}
		if !icrc.Verify(b[28:n], id) {
			t.Errorf("the ICRC of %d bytes is wrong, with %+v", n-28, id)
		}
	}
}

// TestEndAmidPortCheck: the end of an endpoint does not wait for a silent host.
func TestEndAmidPortCheck(t *testing.T) {
	l := &link{shard: newShard(nil, 1, nil), endpoint: &endpoint{local: netip.MustParseAddrPort("127.0.0.1:0")}}
	var p portChecks
	p.add(l, udpPort(t, true), 0, clock())
	p.end()
	if len(p.running) != 1 || l.notices.disconnected.Load() != nil {
		t.Error("the end of the checks ended a link")
	}
}

// TestDenialsAreLimited: a flood of packets for queue pairs that do not exist
// gets denialBurst answers at once, then one in denialInterval.
func TestDenialsAreLimited(t *testing.T) {
	var d denials
	now, n := time.Hour, 0
	for range 10 * denialBurst {
		if d.allow(now) {
			n++
		}
	}
	if n != denialBurst {
		t.Errorf("%d answers at once", n)
	}
	for n = 0; n < 100; n++ {
		now += denialInterval
		if !d.allow(now) || d.allow(now) {
			t.Fatalf("not one answer in interval %d", n)
		}
	}
}
