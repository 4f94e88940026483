package port_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(openHere); addr != "" {
		p, err := port.OpenUDP(netip.MustParseAddrPort(addr), port.UDPOptions{})
		if err == nil {
			err = p.Close()
		}
		fmt.Print(err)
		return
	}
	goleak.VerifyTestMain(m)
}

// fabric opens ports of one kind, each at an address of its own, that reach each
// other. The test closes them.
type fabric func(tb testing.TB, n int) []port.Port

// patience bounds how long a test waits for what has to happen.
const patience = 20 * time.Second

// end is a port with its lanes and their last arrivals.
type end struct {
	port.Port
	tb    testing.TB
	lanes []port.Lane
	peers map[netip.AddrPort]*port.Peer
	room  []port.Arrival
}

// start opens n ports with a number of lanes each.
func (open fabric) start(tb testing.TB, n, lanes int) []*end {
	tb.Helper()
	pin(tb)
	ends := make([]*end, 0, n)
	for _, p := range open(tb, n) {
		e := &end{Port: p, tb: tb, peers: make(map[netip.AddrPort]*port.Peer), room: make([]port.Arrival, 100)}
		for i := range lanes {
			l, err := p.Lane(i)
			if err != nil {
				tb.Fatal(err)
			}
			e.lanes = append(e.lanes, l)
		}
		ends = append(ends, e)
	}
	return ends
}

// pin keeps the goroutine, for good, on one processor. Loopback and its like have
// a queue for each, so that packets sent from two may overtake each other.
func pin(tb testing.TB) {
	tb.Helper()
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		tb.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		tb.Fatal(err)
	}
}

// to returns the peer that stands for another end.
func (e *end) to(other *end) *port.Peer {
	e.tb.Helper()
	addr := other.Local()
	if e.peers[addr] == nil {
		p, err := e.Peer(addr)
		if err != nil {
			e.tb.Fatal(err)
		}
		e.peers[addr] = p
	}
	return e.peers[addr]
}

// send sends from lane 0.
func (e *end) send(spans ...port.Span) {
	e.tb.Helper()
	if err := e.lanes[0].Send(spans); err != nil {
		e.tb.Fatal(err)
	}
}

// sleep waits until a lane is readable.
func sleep(tb testing.TB, l port.Lane) {
	tb.Helper()
	fds := []unix.PollFd{{Fd: int32(l.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			tb.Fatalf("poll of a lane: %d, %v: nothing arrives", n, err)
		}
		return
	}
}

// readable reports whether a lane's file descriptor is readable now.
func readable(tb testing.TB, l port.Lane) bool {
	tb.Helper()
	fds := []unix.PollFd{{Fd: int32(l.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			tb.Fatal(err)
		}
		return n == 1
	}
}

// await returns the next n packets of a lane, copied.
func (e *end) await(lane, n int) []port.Arrival {
	e.tb.Helper()
	var all []port.Arrival
	for len(all) < n {
		k, err := e.lanes[lane].Receive(e.room)
		if err != nil {
			e.tb.Fatal(err)
		}
		if k == 0 {
			sleep(e.tb, e.lanes[lane])
		}
		for _, a := range e.room[:k] {
			if !e.lanes[lane].Intact(&a) {
				e.tb.Fatalf("lane %d: a packet of %d bytes from %v is not intact", lane, len(a.Bytes), a.From)
			}
			a.Bytes = bytes.Clone(a.Bytes)
			all = append(all, a)
		}
	}
	if len(all) > n {
		e.tb.Fatalf("lane %d: %d packets too many", lane, len(all)-n)
	}
	return all
}

// packet returns a packet with a payload of n bytes in a number of pieces.
func packet(qp uint32, psn, n, pieces int) rc.Packet {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: qp, PSN: wire.PSN(psn)}}
	header := make([]byte, wire.MaxHeader)
	header = header[:p.Put(header, n)]
	rng := rand.New(rand.NewPCG(uint64(qp), uint64(psn)))
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(rng.Uint32())
	}
	out := rc.Packet{Header: header, Trailer: make([]byte, int(p.Pad)+wire.ICRCSize), Size: len(header) + n + int(p.Pad) + wire.ICRCSize}
	for i := range pieces {
		out.Payload = append(out.Payload, payload[i*n/pieces:(i+1)*n/pieces])
	}
	return out
}

// run returns packets for one queue pair that join, the last one with a payload
// of last bytes.
func run(qp uint32, count, n, last int) []rc.Packet {
	var ps []rc.Packet
	for i := range count {
		size := n
		if i == count-1 {
			size = last
		}
		p := packet(qp, i, size, 2)
		p.Joins = i > 0
		ps = append(ps, p)
	}
	return ps
}

// flat returns the bytes of a packet as they were sent, with the ICRC.
func flat(p *rc.Packet) []byte {
	b := bytes.Clone(p.Header)
	for _, s := range p.Payload {
		b = append(b, s...)
	}
	return append(b, p.Trailer...)
}

// match compares what arrived with what was sent.
func match(tb testing.TB, got []port.Arrival, sent []rc.Packet, from netip.AddrPort) {
	tb.Helper()
	if len(got) != len(sent) {
		tb.Fatalf("%d of %d packets arrived", len(got), len(sent))
	}
	for i := range sent {
		want := flat(&sent[i])
		if !bytes.Equal(got[i].Bytes, want) {
			tb.Fatalf("packet %d: %d bytes arrived that are not the %d sent:\n%x\n%x", i, len(got[i].Bytes), len(want), got[i].Bytes, want)
		}
		if got[i].From != from {
			tb.Fatalf("packet %d: from %v, want %v", i, got[i].From, from)
		}
		if qp, ok := got[i].DestQP(); !ok || qp != uint32(want[5])<<16|uint32(want[6])<<8|uint32(want[7]) {
			tb.Fatalf("packet %d: for queue pair %d, %v", i, qp, ok)
		}
	}
}

// conformance runs what every port has to do.
func conformance(t *testing.T, open fabric) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, fabric)
	}{
		{"Peers", testPeers},
		{"OpensLanesInOrder", testOpensLanesInOrder},
		{"Lanes", testLanes},
		{"LaneThatIsNotOpen", testLaneThatIsNotOpen},
		{"Order", testOrder},
		{"Sizes", testSizes},
		{"Runs", testRuns},
		{"RunsOfSeveralQueuePairs", testRunsOfSeveralQueuePairs},
		{"Anything", testAnything},
		{"Destinations", testDestinations},
		{"Intact", testIntact},
		{"UnknownPeer", testUnknownPeer},
		{"Readable", testReadable},
		{"LittleRoom", testLittleRoom},
		{"Counters", testCounters},
		{"Close", testClose},
		{"Concurrency", testConcurrency},
		{"LinkMTU", testLinkMTU},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
}
