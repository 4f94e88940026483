package roce

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// probe tests the path to an address during a handshake. A separate socket
// sends a datagram as long as the longest packet: an ICMP error for an
// unreachable host ends the handshake; a router with a smaller MTU makes the
// kernel lower the path MTU before the peer answers. The probe needs no answer
// and must not consume a receive: it addresses queue pair 0, which RoCE does
// not define (InfiniBand specification, volume 1, annex A16), so the peer drops
// it first. A packet to queue pair 1 that is longer than a management datagram
// would permanently consume the first receive there in Linux's rdma_rxe, and
// block further connections to that host. Short probes follow at intervals.
type probe struct {
	conn  *net.UDPConn
	to    netip.AddrPort
	icrc  wire.ICRC
	ended chan struct{}
}

// startProbe sends the datagram. Without a socket there is no probe, and the
// handshake relies on its timeouts.
func startProbe(e *endpoint, to netip.AddrPort, mtu wire.MTU) *probe {
	p, err := newProbe(e.local.Addr(), to)
	if err != nil {
		return nil
	}
	err = p.send(mtu.Bytes())
	go p.routineListen(e, err)
	return p
}

// newProbe opens a socket, whose port the kernel chooses. The caller closes it.
func newProbe(from netip.Addr, to netip.AddrPort) (*probe, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
	if err != nil {
		return nil, err
	}
	p := &probe{conn: conn, to: to, ended: make(chan struct{})}
	p.icrc.Set(conn.LocalAddr().(*net.UDPAddr).AddrPort(), to)
	if err := p.prepare(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return p, nil
}

// prepare sets DF and IP_RECVERR: the socket is not connected, so that the
// kernel writes the identification that the ICRC covers, but it must report
// ICMP errors.
func (p *probe) prepare() error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	level, discover, errs := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_RECVERR
	if p.to.Addr().Is6() {
		level, discover, errs = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = errors.Join(
			unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), level, errs, 1))
	})
	return errors.Join(err, set)
}

// send sends a packet with a payload of n zero bytes.
func (p *probe) send(n int) error {
	packet := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.SMI},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
		Payload: make([]byte, n),
	}
	_, err := p.conn.WriteToUDPAddrPort(packet.Append(nil, &p.icrc, wire.Identification{}), p.to)
	return err
}

// routineListen waits for ICMP errors, until the probe is stopped.
func (p *probe) routineListen(e *endpoint, err error) {
	defer close(p.ended)
	var b [1]byte
	for wait := firstWait; !errors.Is(err, net.ErrClosed); {
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
			e.receiveMADs() // the REP, if the peer disconnected after it
			e.withManager(func(m *cm.Manager, now time.Duration) { m.Unreachable(p.to, now) })
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = p.send(0) // the host may have become unreachable
			wait = min(2*wait, lastWait)
		}
		_ = p.conn.SetReadDeadline(time.Now().Add(wait)) // if it is closed, Read fails
		_, err = p.conn.Read(b[:])
	}
}

// Intervals between probes.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = time.Second
)

// stop ends the probe.
func (p *probe) stop() {
	if p == nil {
		return
	}
	_ = p.conn.Close() // nothing depends on it
	<-p.ended
}
