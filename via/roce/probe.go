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

// probe asks the network about an address while a handshake is under way. A
// socket of its own sends a datagram as long as the longest packet: if nobody is
// there, the network's answer ends the handshake; if a router on the way has less
// room, the kernel knows the path better by the time the peer answers. Nobody's
// answer is needed, and nobody may spend a receive on it: it is a packet to queue
// pair 0, which RoCE has not (InfiniBand specification, volume 1, annex A16), so that
// it is dropped before anything else is looked at. One to queue pair 1 that is
// longer than a management datagram would use up the first receive there for good
// in Linux's rdma_rxe, and nobody could connect to that host any more. Short ones
// follow now and then.
type probe struct {
	conn  *net.UDPConn
	to    netip.AddrPort
	icrc  wire.ICRC
	ended chan struct{}
}

// startProbe sends the datagram. Without a socket there is no probe, and the
// handshake takes its time.
func startProbe(e *endpoint, to netip.AddrPort, mtu wire.MTU) *probe {
	local := netip.AddrPortFrom(e.local.Addr(), 0)
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil
	}
	p := &probe{conn: conn, to: to, ended: make(chan struct{})}
	p.icrc.Set(conn.LocalAddr().(*net.UDPAddr).AddrPort(), to)
	if err := p.prepare(); err != nil {
		_ = conn.Close()
		return nil
	}
	err = p.send(mtu.Bytes())
	go p.routineListen(e, err)
	return p
}

// prepare lets routers refuse the probe if it is too long, and has the socket,
// which is not connected so that the kernel writes the identification that the
// ICRC covers, tell of refusals all the same.
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

// send sends a packet with a payload of n bytes, all zero.
func (p *probe) send(n int) error {
	packet := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.SMI},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
		Payload: make([]byte, n),
	}
	_, err := p.conn.WriteToUDPAddrPort(packet.Append(nil, &p.icrc, wire.Identification{}), p.to)
	return err
}

// routineListen waits for the network's answer, until the probe is stopped.
func (p *probe) routineListen(e *endpoint, err error) {
	defer close(p.ended)
	var b [1]byte
	for wait := firstWait; !errors.Is(err, net.ErrClosed); {
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
			e.hear() // the answer to the handshake, if the peer has gone after it
			e.consult(func(m *cm.Manager, now time.Duration) { m.Unreachable(p.to, now) })
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = p.send(0) // the peer may have gone meanwhile
			wait = min(2*wait, lastWait)
		}
		_ = p.conn.SetReadDeadline(time.Now().Add(wait)) // it is open, or Read says so
		_, err = p.conn.Read(b[:])
	}
}

// Waits for the network's answer, before it is asked again.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = time.Second
)

// stop ends the probe.
func (p *probe) stop() {
	if p == nil {
		return
	}
	_ = p.conn.Close() // it has served
	<-p.ended
}
