package roce

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
	"golang.org/x/sys/unix"
)

// The flood of unknown peers: its packets, its rate, and its limits of memory
// and processor time in the process that receives it. It sets connections up
// for sixteen requests of an address at a time, each with a socket of its own,
// whose buffers are most of the memory.
const (
	floodPackets = 500_000
	floodRate    = 110_000 // a second at most

	floodProcessor = 1.0      // processors, load of the disk's user included
	floodMemory    = 96 << 20 // bytes of resident memory more
)

// runPackets is how many packets one system call sends. The kernel cuts them
// before they travel.
const runPackets = 64

// attackerAddr returns an address beside those of a bed's hosts.
func attackerAddr(family int) netip.Addr {
	if family == 6 {
		return netip.MustParseAddr("fd00::66")
	}
	return netip.MustParseAddr("10.0.0.66")
}

// observed is what a host on the cable learns of a session: a request for a
// connection, and the queue pairs of the disk's side.
type observed struct {
	request wire.REQ
	queues  []uint32
}

// overhear attaches a disk and captures that.
func overhear(t testing.TB, program string, b *netbed.Bed, family int, d testbed.Disk) (testbed.Remote, observed) {
	t.Helper()
	path := t.TempDir() + "/overheard.pcap"
	c := b.A.Capture(path)
	r := testbed.OverRoCE(t, program, b, family, d)
	c.Stop()
	frames, err := netbed.Frames(path)
	testbed.Must(t, err)
	var known observed
	for _, frame := range frames {
		d, err := netbed.ParseDatagram(frame)
		var p wire.Packet
		if err != nil || d.To.Port() != wire.Port || p.Decode(d.Payload, wire.DefaultPKey) != wire.Accepted {
			continue
		}
		if p.DestQP > wire.GSI {
			known.queues = append(known.queues, p.DestQP)
		} else if a, _, refusal := wire.PeekMAD(p.Payload); refusal == wire.Accepted && a == wire.AttributeREQ {
			known.request.Decode(p.Payload)
		}
	}
	if len(known.queues) == 0 || known.request.LocalQP == 0 {
		t.Fatalf("the capture of a session has %d packets to queue pairs, and the request %+v", len(known.queues), known.request)
	}
	return r, known
}

// flooder is an unknown peer: sockets of one host that send to the disk's side
// without a connection.
type flooder struct {
	t       testing.TB
	sockets []*roceSocket
	known   observed
	gids    [2][16]byte // of the flooder, of the disk
	rng     *rand.Rand
	run     []byte
	sent    map[string]int // packets, by kind
}

// newFlooder opens sockets on different ports at an address of host A that the
// initiator does not use.
func newFlooder(t testing.TB, b *netbed.Bed, family, sockets int, known observed) *flooder {
	t.Helper()
	from := attackerAddr(family)
	b.A.AddAddress(from)
	s := &flooder{
		t: t, known: known, rng: rand.New(rand.NewPCG(5, 6)), sent: make(map[string]int),
		gids: [2][16]byte{from.As16(), b.B.Addr(family).As16()},
	}
	for range sockets {
		s.sockets = append(s.sockets, openRoceAt(t, b.A, from, b.B, family))
	}
	return s
}

// packetKinds are the kinds of packets that a flooder sends. Each call makes
// another one, whose place in its run is i; those of a run are equally long.
var packetKinds = []struct {
	name string
	runs int // of a round
	make func(s *flooder, from *roceSocket, b []byte, i int) []byte
}{
	{"unknown queue pair", 3, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		return s.write(from, b, i, 2+s.rng.Uint32N(1<<24-2))
	}},
	{"queue pair of another", 1, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		return s.write(from, b, i, s.known.queues[s.rng.IntN(len(s.known.queues))])
	}},
	{"garbage to queue pair 1", 1, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		return s.management(from, b, i, testbed.Noise(s.rng, wire.MADSize))
	}},
	{"wrong checksum to queue pair 1", 1, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		b = s.management(from, b, i, testbed.Noise(s.rng, wire.MADSize))
		b[len(b)-1] ^= 1
		return b
	}},
	{"request", 1, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		return s.management(from, b, i, s.request())
	}},
	{"cut", 1, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
		at := len(b)
		return s.write(from, b, i, 2+s.rng.Uint32N(1<<24-2))[:at+1+len(s.run)%(wire.MinPacket-1)]
	}},
}

// write appends an RDMA write of 64 bytes to a queue pair.
func (s *flooder) write(from *roceSocket, b []byte, i int, qp uint32) []byte {
	p := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.RCWriteOnly, PKey: wire.DefaultPKey, DestQP: qp, PSN: wire.PSN(s.rng.Uint32N(1 << 24))},
		RETH:    wire.RETH{Addr: s.rng.Uint64(), Key: s.rng.Uint32(), Length: 64},
		Payload: make([]byte, 64),
	}
	return p.Append(b, &from.icrc, from.identification(i))
}

// management appends a datagram to queue pair 1.
func (s *flooder) management(from *roceSocket, b []byte, i int, mad []byte) []byte {
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}, Payload: mad,
	}
	return p.Append(b, &from.icrc, from.identification(i))
}

// request makes the request for a connection that was overheard, for another
// queue pair of another host.
func (s *flooder) request() []byte {
	m := s.known.request
	m.TID, m.LocalGUID, m.LocalID = s.rng.Uint64(), s.rng.Uint64(), 1+s.rng.Uint32N(1<<31)
	m.LocalQP = 2 + s.rng.Uint32N(1<<24-2)
	m.Primary.LocalGID, m.Primary.RemoteGID = s.gids[0], s.gids[1]
	b := make([]byte, wire.MADSize)
	m.Encode(b)
	return b
}

// flood sends packets of all kinds in turns, each run from another port, until
// there are n; rate bounds how many a second.
func (s *flooder) flood(n, rate int) {
	s.t.Helper()
	next, socket := time.Now(), 0
	for sent := 0; sent < n; {
		for k := range packetKinds {
			kind := &packetKinds[k]
			for range kind.runs {
				from := s.sockets[socket%len(s.sockets)]
				socket++
				s.sendRun(from, kind.make)
				sent += runPackets
				s.sent[kind.name] += runPackets
				next = next.Add(time.Second * runPackets / time.Duration(rate))
			}
		}
		time.Sleep(time.Until(next))
	}
}

// sendRun sends a run of packets.
func (s *flooder) sendRun(from *roceSocket, make func(*flooder, *roceSocket, []byte, int) []byte) {
	s.t.Helper()
	s.run = s.run[:0]
	size := 0
	for i := range runPackets {
		s.run = make(s, from, s.run, i)
		if i == 0 {
			size = len(s.run)
		}
		s.run = s.run[:(i+1)*size]
	}
	_, _, err := from.WriteMsgUDPAddrPort(s.run, segmentControl(size), from.to)
	testbed.Must(s.t, err)
}

// segmentControl is the control message that says how long the packets of a run
// are (udp(7), UDP_SEGMENT).
func segmentControl(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	order := binary.NativeEndian
	order.PutUint64(b, uint64(unix.CmsgLen(2)))
	order.PutUint32(b[8:], unix.SOL_UDP)
	order.PutUint32(b[12:], unix.UDP_SEGMENT)
	order.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}

// TestFloodOfUnknownPeers sends a disk's host a hundred thousand packets a
// second that belong to no connection. A client of the disk notices nothing but
// time, and the flood costs the target neither much processor time nor memory.
func TestFloodOfUnknownPeers(t *testing.T) {
	testbed.Alone(t)
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			const size = 16 << 20
			b := netbed.New(t, netbed.Options{})
			file := testbed.SparseFile(t, size)
			r, known := overhear(t, testbed.PlainProgram(t), b, family, testbed.Disk{Name: "disk", Spec: "file:" + file})
			s := newFlooder(t, b, family, 32, known)
			testbed.Fio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=4m")...)
			arrived := b.B.Count(netbed.From(attackerAddr(family)))
			before, memory := r.Target.Status().Network[0], r.Target.Memory("VmRSS")

			healthy := testbed.StartFio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=500,500")...)
			began, used := time.Now(), r.Target.ProcessorTime()
			s.flood(floodPackets, floodRate)
			elapsed, spent := time.Since(began), r.Target.ProcessorTime()-used
			grown := r.Target.Memory("VmRSS") - memory
			testbed.Succeed(t, healthy)
			r.CopyBothWays(t, file, testbed.RandomBytes(size))
			r.Unharmed(t)

			after := r.Target.Status().Network[0]
			here, dropped := uint64(arrived.Hits()), after.Dropped()-before.Dropped()
			share := spent.Seconds() / elapsed.Seconds()
			t.Logf("%d packets at %.0f a second, %d arrived, %d were dropped; the target used %.2f processors and %d KiB more",
				floodPackets, floodPackets/elapsed.Seconds(), here, dropped, share, grown>>10)
			t.Logf("dropped: %+v, by the connection manager: %+v", after.NetworkDrops, after.Manager)
			if here < floodPackets*9/10 {
				t.Errorf("%d of %d packets arrived", here, floodPackets)
			}
			if dropped < here/100*99 {
				t.Errorf("%d of %d packets are counted as dropped", dropped, here)
			}
			if m := &after.Manager; min(after.Malformed, after.BadICRC, after.Unknown, after.BadSource, m.Malformed, m.Challenged) == 0 {
				t.Errorf("a kind of packets is not counted: %+v, %+v", after.NetworkDrops, after.Manager)
			}
			if share > floodProcessor {
				t.Errorf("the target used %.2f processors under the flood, more than %.2f", share, floodProcessor)
			}
			if grown > floodMemory {
				t.Errorf("the target has grown by %d bytes", grown)
			}
		})
	}
}
