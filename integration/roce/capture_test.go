package roce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
	"golang.org/x/sys/unix"
)

// capturedPackets reads the RoCE packets of a capture, every one of which must
// have the right checksum and be one that a receiver accepts. It returns how
// many there are at RoCE's port of each opcode. Other UDP packets are a failure
// unless they ask whether the port of a peer that stands still is closed.
func capturedPackets(t testing.TB, path string) map[wire.Opcode]int {
	t.Helper()
	frames, err := netbed.Frames(path)
	testbed.Must(t, err)
	count := make(map[wire.Opcode]int)
	for i, frame := range frames {
		d, err := netbed.ParseDatagram(frame)
		if err != nil {
			continue // the hosts look for each other
		}
		op, err := checkPacket(d)
		if err != nil {
			t.Errorf("%s: frame %d: %v", filepath.Base(path), i+1, err)
			continue
		}
		if d.From.Port() == wire.Port || d.To.Port() == wire.Port {
			count[op]++
		}
	}
	return count
}

// checkPacket checks a datagram as its receiver would if it saw the IP header.
func checkPacket(d netbed.Datagram) (wire.Opcode, error) {
	var c wire.ICRC
	var id wire.Identification
	c.Set(d.From, d.To)
	id.ID, id.MayFragment = d.ID, d.MayFragment
	if d.From.Port() != wire.Port && d.To.Port() != wire.Port && !isProbe(d.Payload) {
		return 0, fmt.Errorf("ports %d and %d are not RoCE's", d.From.Port(), d.To.Port())
	}
	if !c.Verify(d.Payload, id) {
		return 0, fmt.Errorf("the ICRC of %d bytes is wrong, with identification %+v", len(d.Payload), id)
	}
	var p wire.Packet
	r := p.Decode(d.Payload, wire.DefaultPKey)
	if r != wire.Accepted && len(d.Payload) >= wire.MinPacket+wire.TagSize && p.DestQP > wire.GSI {
		r = p.Decode(wire.Untag(d.Payload), wire.DefaultPKey) // both ends are viablk
	}
	switch {
	case r == wire.RefusedQueuePair && isProbe(d.Payload):
		return wire.UDSendOnly, nil
	case r != 0:
		return 0, fmt.Errorf("refused: %v", r)
	}
	return p.Opcode, nil
}

// isProbe reports whether a packet is one that asks how long packets to a peer
// may be, or whether its port is closed: a datagram of zeroes to queue pair 0.
func isProbe(packet []byte) bool {
	const headers, icrc = 20, 4 // BTH and DETH
	return len(packet) >= headers+icrc && wire.Opcode(packet[0]) == wire.UDSendOnly &&
		len(bytes.Trim(packet[headers:len(packet)-icrc], "\x00")) == 0
}

// dissection is what tshark says of the packets at RoCE's port in a capture.
type dissection struct {
	packets    int
	infiniband int      // packets that are InfiniBand to it
	connecting int      // of them, messages of the connection manager
	complaints []string // of malformed packets, and errors
}

// dissect has tshark take a capture apart. Version 4.0 takes payload for RPC
// where it cannot know better, and does not verify the ICRC.
func dissect(t testing.TB, path string) dissection {
	t.Helper()
	out := testbed.Run(t, "tshark", "-n", "-r", path, "-Y", fmt.Sprintf("udp.port == %d and not icmp and not icmpv6", wire.Port), "--disable-protocol", "rpcordma", "-T", "fields",
		"-E", "separator=|", "-e", "frame.number", "-e", "frame.protocols", "-e", "infiniband.bth.opcode",
		"-e", "infiniband.mad.attributeid", "-e", "_ws.malformed", "-e", "_ws.expert.severity", "-e", "_ws.expert.message")
	var d dissection
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) != 7 {
			t.Fatalf("tshark says %q", line)
		}
		d.packets++
		if strings.Contains(f[1], "infiniband") && f[2] != "" {
			d.infiniband++
		}
		if f[3] != "" {
			d.connecting++
		}
		if f[4] != "" || strings.Contains(f[1], "malformed") || worst(f[5]) >= expertError {
			d.complaints = append(d.complaints, line)
		}
	}
	return d
}

// expertError is the severity of errors and malformed packets in tshark.
const expertError = 0x00800000

// worst returns the greatest of a list of severities.
func worst(list string) uint64 {
	most := uint64(0)
	for s := range strings.SplitSeq(list, ",") {
		n, _ := strconv.ParseUint(s, 0, 32) // nothing is 0
		most = max(most, n)
	}
	return most
}

// roceSocket sends RoCE packets.
type roceSocket struct {
	*net.UDPConn
	icrc wire.ICRC
	to   netip.AddrPort
}

// openRoce opens a socket that sends as RoCE must: unconnected, packets that
// may not be fragmented, whose identification is 0 (ip(7)).
func openRoce(t testing.TB, from, to *netbed.Host, family int) *roceSocket {
	t.Helper()
	return openRoceAt(t, from, from.Addr(family), to, family)
}

// openRoceAt is openRoce at an address of the host.
func openRoceAt(t testing.TB, from *netbed.Host, at netip.Addr, to *netbed.Host, family int) *roceSocket {
	t.Helper()
	s := &roceSocket{UDPConn: from.ListenUDP(at, 0), to: netip.AddrPortFrom(to.Addr(family), wire.Port)}
	s.icrc.Set(s.LocalAddr().(*net.UDPAddr).AddrPort(), s.to)
	raw, err := s.SyscallConn()
	testbed.Must(t, err)
	testbed.Must(t, raw.Control(func(fd uintptr) {
		if family == 4 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
	}))
	testbed.Must(t, err)
	return s
}

// send sends a packet; spoil, if not nil, changes it when its checksum is
// there.
func (s *roceSocket) send(t testing.TB, p *wire.Packet, spoil func([]byte) []byte) {
	t.Helper()
	p.PKey, p.Pad = wire.DefaultPKey, uint8(-len(p.Payload)&3)
	b := p.Append(nil, &s.icrc, wire.Identification{})
	if spoil != nil {
		b = spoil(b)
	}
	_, err := s.WriteToUDPAddrPort(b, s.to)
	testbed.Must(t, err)
}

// identification is what the kernel writes into packet i of a run: its place
// there, with IPv4.
func (s *roceSocket) identification(i int) wire.Identification {
	if s.to.Addr().Is6() {
		return wire.Identification{}
	}
	return wire.Identification{ID: uint16(i)}
}

// samples are packets of a conversation: a connection request, a write of three
// packets and its acknowledgement, a send, a read and its response.
func samples(src, dst netip.Addr) []*wire.Packet {
	req := make([]byte, wire.MADSize)
	m := &wire.REQ{
		TID: 1, LocalID: 2, ServiceID: wire.TCPService(10809), LocalQP: 3, RetryCount: 7, PKey: wire.DefaultPKey,
		Primary: wire.Path{LocalGID: src.As16(), RemoteGID: dst.As16()},
	}
	m.Encode(req)
	with := func(op wire.Opcode, psn wire.PSN, payload []byte) *wire.Packet {
		p := &wire.Packet{BTH: wire.BTH{Opcode: op, DestQP: 0x1234, PSN: psn}, Payload: payload}
		p.RETH = wire.RETH{Addr: 1 << 20, Key: 77, Length: 2500}
		return p
	}
	cm := with(wire.UDSendOnly, 0, req)
	cm.DestQP, cm.DETH = wire.GSI, wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}
	return []*wire.Packet{
		cm,
		with(wire.RCWriteFirst, 1, testbed.RandomBytes(1024)), with(wire.RCWriteMiddle, 2, testbed.RandomBytes(1024)), with(wire.RCWriteLast, 3, testbed.RandomBytes(452)),
		with(wire.RCAcknowledge, 3, nil),
		with(wire.RCSendOnly, 4, testbed.RandomBytes(65)), with(wire.RCSendOnlyImmediate, 5, nil),
		with(wire.RCReadRequest, 6, nil), with(wire.RCReadResponseOnly, 6, testbed.RandomBytes(100)),
		with(wire.UCSendOnly, 7, testbed.RandomBytes(11)),
	}
}

// TestCaptureOfPackets has tshark and the checks agree on packets that are
// right, over a real link, and not on others.
func TestCaptureOfPackets(t *testing.T) {
	testbed.Requires(t, "tshark")
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{})
			path := filepath.Join(t.TempDir(), "roce.pcap")
			c := b.A.Capture(path)
			s := openRoce(t, b.A, b.B, family)
			all := samples(b.A.Addr(family), b.B.Addr(family))
			for _, p := range all {
				s.send(t, p, nil)
			}
			c.Stop()
			count := capturedPackets(t, path)
			for _, p := range all {
				if count[p.Opcode] != 1 {
					t.Errorf("%d packets %v were captured", count[p.Opcode], p.Opcode)
				}
			}
			d := dissect(t, path)
			if d.packets != len(all) || d.infiniband != len(all) || d.connecting != 1 || len(d.complaints) > 0 {
				t.Errorf("tshark sees %+v, want %d packets", d, len(all))
			}
		})
	}
}

// TestCaptureOfBadPackets sees that the checks can fail.
func TestCaptureOfBadPackets(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	path := filepath.Join(t.TempDir(), "roce.pcap")
	c := b.A.Capture(path)
	s := openRoce(t, b.A, b.B, 4)
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte {
			b[(at+len(b))%len(b)] ^= 0x80
			return b
		}
	}
	spoils := []func([]byte) []byte{
		flip(-1), // the ICRC
		flip(20), // the payload
		flip(8),  // the acknowledge request
		func(b []byte) []byte {
			b[0] = byte(wire.RCWriteOnly)
			return b[:20] // in the middle of its RETH
		},
	}
	for _, spoil := range spoils {
		s.send(t, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: 9}, Payload: make([]byte, 40)}, spoil)
	}
	short := &wire.Packet{BTH: wire.BTH{Opcode: wire.RCWriteOnly, DestQP: 9}, Payload: nil}
	short.RETH.Length = 5000 // more than there is
	s.send(t, short, nil)
	c.Stop()
	frames, err := netbed.Frames(path)
	testbed.Must(t, err)
	bad := 0
	for _, frame := range frames {
		if d, err := netbed.ParseDatagram(frame); err == nil {
			if _, err := checkPacket(d); err == nil {
				t.Errorf("a spoilt packet is accepted: %x", d.Payload)
			}
			bad++
		}
	}
	if bad != len(spoils)+1 {
		t.Errorf("%d packets were captured, want %d", bad, len(spoils)+1)
	}
	if d := dissect(t, path); len(d.complaints) != 1 {
		t.Errorf("tshark complains of %q, want the cut packet", d.complaints)
	}
}

// TestSeverityOfComplaints reads what tshark writes.
func TestSeverityOfComplaints(t *testing.T) {
	for list, want := range map[string]bool{"": false, "2097152": false, "4194304,2097152": false, "2097152,8388608": true, "6291456": false} {
		if got := worst(list) >= expertError; got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}
