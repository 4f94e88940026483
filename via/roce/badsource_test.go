package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// udpHeader is the length of a UDP header.
const udpHeader = 8

// forger sends UDP datagrams from any port of this host, and receives those of
// others. It needs root.
type forger struct {
	tb testing.TB
	fd int
}

func newForger(tb testing.TB) *forger {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		tb.Fatalf("this test needs root, or CAP_NET_RAW: %v", err)
	}
	tb.Cleanup(func() { check(tb, unix.Close(fd)) })
	const offset = 6 // of the UDP checksum, which the kernel computes
	check(tb, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, offset))
	return &forger{tb, fd}
}

// send sends a datagram between two ports of ::1.
func (f *forger) send(from, to netip.AddrPort, payload []byte) {
	f.tb.Helper()
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(payload)))
	b = append(append(b, 0, 0), payload...)
	check(f.tb, unix.Sendto(f.fd, b, 0, &unix.SockaddrInet6{Addr: to.Addr().As16()}))
}

// listenTo sets a socket filter that passes only datagrams to one port, and
// discards what has been received before.
func (f *forger) listenTo(port uint16) {
	f.tb.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 2}, // the destination
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	check(f.tb, unix.SetsockoptSockFprog(f.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
	for b := make([]byte, 1<<16); ; {
		if _, _, err := unix.Recvfrom(f.fd, b, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}

// spied is a connection over sockets whose addresses, QPNs and PSNs the forger
// knows.
type spied struct {
	*forger
	hostile
	px, py netip.AddrPort // of its ends
	qp     uint32         // of y's end
	icrc   wire.ICRC      // for packets from x to y
	psn    wire.PSN       // follows that of the last request received
	tag    []byte         // of packets from x to y
}

func newSpied(t *testing.T) *spied {
	t.Helper()
	// Each packet is a datagram, as on a network.
	p := roce.New(roce.Options{Open: func(local netip.AddrPort) (port.Port, error) {
		return port.OpenUDP(local, port.UDPOptions{NoSegmentation: true, NoCoalescing: true})
	}})
	s := &spied{forger: newForger(t), hostile: hostile{provider: p}}
	s.x, s.y = newParty(t, p, ""), newParty(t, p, "")
	host := freePort(t, "::1")
	link(t, host, s.x.vi, s.y.vi, s.y.nic)
	s.py = netip.MustParseAddrPort(host)
	at := s.atY()
	s.qp, s.px = at.Shards[0].Links[0].QP, at.Shards[0].Links[0].Peer
	s.icrc.Set(s.px, s.py)
	s.listenTo(s.py.Port())
	s.works(t)
	if s.expects() == 0 {
		t.Fatal("no request was received")
	}
	return s
}

// expects returns the PSN of x's next request.
func (s *spied) expects() wire.PSN {
	s.tb.Helper()
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return s.psn
		}
		check(s.tb, err)
		var p wire.Packet
		if binary.BigEndian.Uint16(b) == s.px.Port() && p.Decode(b[udpHeader:n], wire.DefaultPKey) == wire.Accepted &&
			p.DestQP == s.qp && p.Opcode.Flags()&wire.Response == 0 && s.icrc.Verify(b[udpHeader:n], wire.Identification{}) {
			s.psn = p.PSN.Add(1)
			s.tag = bytes.Clone(b[n-wire.ICRCSize-int(p.Pad)-wire.TagSize:][:wire.TagSize])
		}
	}
}

// atY returns the statistics of y's endpoint.
func (s *spied) atY() *roce.EndpointStatistics { return s.hostile.atY(s.py.String()) }

// packet returns a Send of 64 bytes to y, in the name of x.
func (s *spied) packet(change func(*wire.Packet)) []byte {
	p := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: s.qp},
		Payload: make([]byte, 64),
	}
	if change != nil {
		change(&p)
	}
	return p.Append(nil, &s.icrc, wire.Identification{})
}

// tagged inserts the tag of the connection where it belongs. It seals the
// packet again if that was sealed before.
func (s *spied) tagged(b []byte) []byte {
	isIntact := s.icrc.Verify(b, wire.Identification{})
	if len(b) < wire.MinPacket {
		return b
	}
	at := len(b) - wire.ICRCSize - int(b[1]>>4&3)
	b = slices.Insert(b, at, s.tag...)
	if isIntact {
		s.seal(b)
	}
	return b
}

// seal computes the ICRC into the last four bytes.
func (s *spied) seal(b []byte) []byte {
	end := len(b) - wire.ICRCSize
	s.icrc.Seal(b[end:], wire.Identification{}, b[:end])
	return b
}

// Counters of y's endpoint, summed over the shards.
func malformed(e *roce.EndpointStatistics) (n uint64) {
	n = e.CMPort.Malformed
	for i := range e.Shards {
		n += e.Shards[i].Port.Malformed
	}
	return n
}

// counter returns a counter of the shards.
func counter(of func(*roce.ShardCounters) uint64) func(*roce.EndpointStatistics) uint64 {
	return func(e *roce.EndpointStatistics) uint64 {
		n := of(&e.CM)
		for i := range e.Shards {
			n += of(&e.Shards[i].ShardCounters)
		}
		return n
	}
}

var (
	refused   = counter(func(c *roce.ShardCounters) uint64 { return c.Refused })
	damaged   = counter(func(c *roce.ShardCounters) uint64 { return c.Damaged })
	badSource = counter(func(c *roce.ShardCounters) uint64 { return c.BadSource })
	unknown   = counter(func(c *roce.ShardCounters) uint64 { return c.Unknown })
)

// suspect counts the duplicate, out-of-sequence and ignored packets of the
// connection.
func suspect(e *roce.EndpointStatistics) (n uint64) {
	for i := range e.Shards {
		for k := range e.Shards[i].Links {
			c := &e.Shards[i].Links[k].Counters
			n += c.OutOfSequence + c.Ignored + c.Duplicates
		}
	}
	return n
}

// An attacker sends invalid packets from the peer's address and port, or from
// others: the right counter counts each, and the connection works on.
func TestInvalidPackets(t *testing.T) {
	s := newSpied(t)
	other := netip.AddrPortFrom(s.px.Addr(), s.px.Port()^1)
	for _, c := range []struct {
		name    string
		from    netip.AddrPort
		make    func(next wire.PSN) []byte
		counted func(*roce.EndpointStatistics) uint64
	}{
		{"version", s.px, func(next wire.PSN) []byte {
			b := s.packet(nil)
			b[1] |= 3
			return s.seal(b)
		}, refused},
		{"partition", s.px, func(next wire.PSN) []byte {
			return s.packet(func(p *wire.Packet) { p.PKey = 0x8001 })
		}, refused},
		{"unknown opcode", s.px, func(next wire.PSN) []byte {
			b := s.packet(nil)
			b[0] = 0x1f
			return s.seal(b)
		}, refused},
		{"cut in the middle of a header", s.px, func(next wire.PSN) []byte {
			b := s.packet(func(p *wire.Packet) { p.Opcode = wire.RCWriteOnly })
			return s.seal(b[:wire.BTHSize+8])
		}, refused},
		{"not a multiple of four", s.px, func(next wire.PSN) []byte {
			b := s.packet(nil)
			return s.seal(b[:len(b)-1])
		}, refused},
		{"cut", s.px, func(next wire.PSN) []byte { b := s.packet(nil); return b[:len(b)-20] }, damaged},
		{"wrong ICRC", s.px, func(next wire.PSN) []byte { b := s.packet(nil); b[len(b)-1] ^= 1; return b }, damaged},
		{"changed payload", s.px, func(next wire.PSN) []byte { b := s.packet(nil); b[40] ^= 1; return b }, damaged},
		{"extended", s.px, func(next wire.PSN) []byte { return append(s.packet(nil), 0, 0, 0, 0) }, damaged},
		{"shorter than any packet", s.px, func(next wire.PSN) []byte { return s.packet(nil)[:wire.MinPacket-1] }, malformed},
		{"one byte", s.px, func(next wire.PSN) []byte { return s.packet(nil)[:1] }, malformed},
		{"nothing", s.px, func(next wire.PSN) []byte { return nil }, malformed},
		{"longer than any packet", s.px, func(next wire.PSN) []byte {
			return s.seal(append(s.packet(nil), make([]byte, wire.MaxPacket)...))
		}, malformed},
		{"source", other, func(next wire.PSN) []byte { return s.packet(nil) }, badSource},
		{"queue pair", s.px, func(next wire.PSN) []byte {
			return s.packet(func(p *wire.Packet) { p.DestQP ^= 1 << 20 })
		}, unknown},
		{"PSN far ahead", s.px, func(next wire.PSN) []byte {
			return s.packet(func(p *wire.Packet) { p.PSN = next.Add(1 << 22) })
		}, suspect},
		{"PSN far behind", s.px, func(next wire.PSN) []byte {
			return s.packet(func(p *wire.Packet) { p.PSN = next.Add(-1 << 22) })
		}, suspect},
		{"answer to nothing", s.px, func(next wire.PSN) []byte {
			return s.packet(func(p *wire.Packet) {
				p.Opcode, p.Payload, p.AETH.Syndrome = wire.RCAcknowledge, nil, wire.NAKRemoteAccess
				p.PSN = next.Add(1 << 22)
			})
		}, suspect},
	} {
		t.Run(c.name, func(t *testing.T) {
			const times = 7
			before, next := s.atY(), s.expects()
			for range times {
				b := c.make(next)
				if c.from == s.px {
					b = s.tagged(b)
				}
				s.send(c.from, s.py, b)
			}
			within(t, "the packets to be counted", func() bool {
				s.x.poll()
				s.y.poll()
				after := s.atY()
				return c.counted(after) >= c.counted(before)+times
			})
			after := s.atY()
			if n := c.counted(after) - c.counted(before); n != times {
				t.Errorf("%d packets are counted, want %d", n, times)
			}
			s.works(t)
		})
	}
	s.close()
}

// A write and a read from another port of the peer's host fail, even with valid
// keys and addresses.
func TestAccessFromWrongSource(t *testing.T) {
	s := newSpied(t)
	other := netip.AddrPortFrom(s.px.Addr(), s.px.Port()^1)
	s.icrc.Set(other, s.py)
	secret := s.y.payload(0, 64)
	copy(secret, "a secret")
	want := string(secret)
	before := s.atY()
	const times = 20
	for i := range times {
		s.send(other, s.py, s.packet(func(p *wire.Packet) {
			p.Opcode, p.RETH = wire.RCWriteOnly, wire.RETH{Addr: s.y.addr(0), Key: s.y.mem.Handle(), Length: 64}
			if i%2 == 0 {
				p.Opcode, p.Payload = wire.RCReadRequest, nil
			}
			p.PSN = wire.PSN(i)
		}))
	}
	within(t, "the packets to be counted", func() bool {
		s.y.poll()
		after := s.atY()
		return badSource(after) == badSource(before)+times
	})
	if string(secret) != want {
		t.Error("memory has changed")
	}
	s.works(t)
	if s.x.vi.State() != via.StateConnected || s.y.vi.State() != via.StateConnected {
		t.Error("the connection is lost")
	}
	s.close()
}
