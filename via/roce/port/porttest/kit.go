// Package porttest is the conformance kit of ports, which every implementation
// of [port.Port] runs in its tests, and a network namespace to run it in.
package porttest

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Fabric opens ports of one kind, each at an address of its own, that reach
// each other. The test closes them.
type Fabric func(tb testing.TB, n int) []port.Port

// Timeout bounds the waits of a test.
const Timeout = 20 * time.Second

// End is a port with its shards and their last arrivals.
type End struct {
	port.Port
	tb     testing.TB
	Shards []port.Shard
	Room   []port.Arrival // of the last Receive
	peers  map[netip.AddrPort]port.Peer
}

// Start opens n ports with a number of shards each.
func (open Fabric) Start(tb testing.TB, n, shards int) []*End {
	tb.Helper()
	Pin(tb)
	ends := make([]*End, 0, n)
	for _, p := range open(tb, n) {
		e := &End{Port: p, tb: tb, peers: make(map[netip.AddrPort]port.Peer), Room: make([]port.Arrival, 100)}
		for i := range shards {
			l, err := p.Shard(i)
			if err != nil {
				tb.Fatal(err)
			}
			e.Shards = append(e.Shards, l)
		}
		ends = append(ends, e)
	}
	return ends
}

// Pin pins the goroutine to one CPU. Loopback has a queue per CPU, so that
// packets sent from two may be reordered.
func Pin(tb testing.TB) {
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

// To returns the peer of another end.
func (e *End) To(other *End) port.Peer {
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

// Send sends from shard 0.
func (e *End) Send(spans ...port.Span) {
	e.tb.Helper()
	if err := e.Shards[0].Send(spans); err != nil {
		e.tb.Fatal(err)
	}
}

// Sleep waits until one of some shards is readable.
func Sleep(tb testing.TB, shards ...port.Shard) {
	tb.Helper()
	fds := make([]unix.PollFd, 0, 4)
	for _, s := range shards {
		fds = append(fds, unix.PollFd{Fd: int32(s.FD()), Events: unix.POLLIN})
	}
	for {
		n, err := unix.Poll(fds, int(Timeout/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < 1 {
			tb.Fatalf("poll of %d shards: %d, %v: nothing arrives", len(shards), n, err)
		}
		return
	}
}

// Readable reports whether a shard's file descriptor is readable now.
func Readable(tb testing.TB, s port.Shard) bool {
	tb.Helper()
	fds := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
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

// Await returns the next n packets of a shard, copied.
func (e *End) Await(shard, n int) []port.Arrival {
	e.tb.Helper()
	var all []port.Arrival
	for len(all) < n {
		k, err := e.Shards[shard].Receive(e.Room)
		if err != nil {
			e.tb.Fatal(err)
		}
		if k == 0 {
			Sleep(e.tb, e.Shards[shard])
		}
		for _, a := range e.Room[:k] {
			if !e.Shards[shard].Intact(&a) {
				e.tb.Fatalf("shard %d: a packet of %d bytes from %v is not intact", shard, len(a.Bytes), a.From)
			}
			a.Bytes = bytes.Clone(a.Bytes)
			all = append(all, a)
		}
	}
	if len(all) > n {
		e.tb.Fatalf("shard %d: %d packets too many", shard, len(all)-n)
	}
	return all
}

// Packet returns a packet with a payload of n bytes in a number of pieces.
func Packet(qp uint32, psn, n, pieces int) rc.Packet {
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

// Run returns packets for one queue pair that join, the last one with a payload
// of last bytes.
func Run(qp uint32, count, n, last int) []rc.Packet {
	var ps []rc.Packet
	for i := range count {
		size := n
		if i == count-1 {
			size = last
		}
		p := Packet(qp, i, size, 2)
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

// Match compares what arrived with what was sent.
func Match(tb testing.TB, got []port.Arrival, sent []rc.Packet, from netip.AddrPort) {
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

// Conformance runs the cases of every kind of port.
func Conformance(t *testing.T, open Fabric) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Fabric)
	}{
		{"Peers", testPeers},
		{"ShardOpenOrder", testShardOpenOrder},
		{"Shards", testShards},
		{"ShardNotOpen", testShardNotOpen},
		{"Order", testOrder},
		{"Sizes", testSizes},
		{"Runs", testRuns},
		{"RunsOfSeveralQueuePairs", testRunsOfSeveralQueuePairs},
		{"RandomSpans", testRandomSpans},
		{"Destinations", testDestinations},
		{"Intact", testIntact},
		{"UnknownPeer", testUnknownPeer},
		{"Readable", testReadable},
		{"ShortDestination", testShortDestination},
		{"Counters", testCounters},
		{"Close", testClose},
		{"Concurrency", testConcurrency},
		{"LinkMTU", testLinkMTU},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
}
