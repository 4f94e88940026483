package porttest

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

func testPeers(t *testing.T, open Fabric) {
	e := open.Start(t, 1, 1)[0]
	local := e.Local()
	other := netip.MustParseAddr("192.0.2.1")
	unspecified, multicast := netip.IPv6Unspecified(), netip.IPv6LinkLocalAllNodes()
	if local.Addr().Is4() {
		other = netip.MustParseAddr("2001:db8::1")
		unspecified, multicast = netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1")
	}
	for _, a := range []netip.AddrPort{
		{},
		netip.AddrPortFrom(other, 4791),
		netip.AddrPortFrom(unspecified, 4791),
		netip.AddrPortFrom(multicast, 4791),
		netip.AddrPortFrom(local.Addr(), 0),
	} {
		if _, err := e.Peer(a); err == nil {
			t.Errorf("%v is a peer of %v", a, local)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(local.Addr().As16()).WithZone(local.Addr().Zone()), 4791)
	p, err := e.Peer(mapped)
	if err != nil {
		t.Fatal(err)
	}
	if want := netip.AddrPortFrom(local.Addr(), 4791); p.Addr() != want {
		t.Errorf("the peer %v is %v", mapped, p.Addr())
	}
}

func testShardOpenOrder(t *testing.T, open Fabric) {
	p := open(t, 1)[0]
	for _, i := range []int{-1, 1, port.Shards} {
		if _, err := p.Shard(i); err == nil {
			t.Errorf("shard %d opened first", i)
		}
	}
	for i := range 3 {
		l, err := p.Shard(i)
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Shard(i)
		if err != nil || again != l || again.FD() != l.FD() {
			t.Errorf("shard %d differs on the second open (%v)", i, err)
		}
	}
}

func testShards(t *testing.T, open Fabric) {
	const shards = 4
	ends := open.Start(t, 2, shards)
	a, b := ends[0], ends[1]
	want := make([][]rc.Packet, shards)
	var all []rc.Packet
	for i, qp := range []uint32{wire.GSI, 64, 128, 65, 129, 2, 66, 0xffffc2, 3, 0xffffc3, wire.GSI, 64} {
		p := Packet(qp, i, 40, 1)
		shard := port.ShardOf(qp)
		want[shard] = append(want[shard], p)
		all = append(all, p)
	}
	a.Send(port.Span{To: a.To(b), Packets: all})
	for i := range shards {
		Match(t, b.Await(i, len(want[i])), want[i], a.Local())
	}
	for i, l := range b.Shards {
		if n, err := l.Receive(b.Room); n != 0 || err != nil {
			t.Errorf("shard %d: %d packets too many, %v", i, n, err)
		}
	}
}

func testShardNotOpen(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 2)
	a, b := ends[0], ends[1]
	const count = 8
	for i := range count {
		a.Send(port.Span{To: a.To(b), Packets: []rc.Packet{Packet(uint32(64+40+i), i, 8, 1)}})
	}
	runtime.GC() // nothing refers to the sender's peers
	for n := 0; n < count; {
		before := n
		for _, l := range b.Shards {
			k, err := l.Receive(b.Room)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		if n == before {
			Sleep(t, b.Shards...)
		}
	}
}

func testOrder(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	const batch, batches = 50, 20
	for i := range batches {
		var ps []rc.Packet
		for k := range batch {
			ps = append(ps, Packet(64, i*batch+k, (i*batch+k)%97, 1))
		}
		a.Send(port.Span{To: a.To(b), Packets: ps[:batch/2]}, port.Span{To: a.To(b), Packets: ps[batch/2:]})
		Match(t, b.Await(0, batch), ps, a.Local())
	}
}

func testSizes(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	const most = wire.MaxPacket - wire.BTHSize - wire.ICRCSize
	for _, n := range []int{0, 1, 2, 3, 4, 5, 63, 64, 255, 256, 1023, 1024, 1025, 2048, 4095, 4096, most - 1, most} {
		var ps []rc.Packet
		for _, pieces := range []int{0, 1, 2, 7, 30} {
			if n > 0 && pieces > 0 || n == 0 && pieces == 0 {
				ps = append(ps, Packet(64, n, n, pieces))
			}
		}
		a.Send(port.Span{To: a.To(b), Packets: ps})
		Match(t, b.Await(0, len(ps)), ps, a.Local())
	}
}

func testRuns(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	for _, c := range []struct{ count, size, last int }{
		{1, 100, 100},
		{2, 100, 100},
		{2, 100, 1},
		{3, 0, 0},
		{rc.MaxRun, 64, 64},
		{rc.MaxRun, 1000, 996},
		{15, 4096, 4096},
		{15, 4096, 0},
	} {
		ps := Run(64, c.count, c.size, c.last)
		a.Send(port.Span{To: a.To(b), Packets: ps})
		Match(t, b.Await(0, len(ps)), ps, a.Local())
	}
}

// Adjacent runs of different queue pairs are not merged.
func testRunsOfSeveralQueuePairs(t *testing.T, open Fabric) {
	const shards = 3
	ends := open.Start(t, 2, shards)
	a, b := ends[0], ends[1]
	var all []rc.Packet
	want := make([][]rc.Packet, shards)
	for i, qp := range []uint32{64, 65, 64, 66, 66, 64} {
		ps := Run(qp, 1+i*3, 200, 4*i)
		all = append(all, ps...)
		want[port.ShardOf(qp)] = append(want[port.ShardOf(qp)], ps...)
	}
	a.Send(port.Span{To: a.To(b), Packets: all})
	for i := range shards {
		Match(t, b.Await(i, len(want[i])), want[i], a.Local())
	}
}

// Random packets in random pieces, with invalid joins, arrive unchanged, and in
// order at each destination.
func testRandomSpans(t *testing.T, open Fabric) {
	ends := open.Start(t, 3, 1)
	a := ends[0]
	for _, to := range ends[1:] { // the queue of an unresolved neighbour is short
		a.Send(port.Span{To: a.To(to), Packets: []rc.Packet{Packet(64, 0, 0, 0)}})
		to.Await(0, 1)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 12 {
		var spans []port.Span
		want := make([][]rc.Packet, len(ends))
		for psn := 0; psn < 150; {
			k := 1 + rng.IntN(2)
			var ps []rc.Packet
			size := []int{0, 4, 60, 257, 1024, 4096}[rng.IntN(6)]
			for range 1 + rng.IntN(40) {
				if rng.IntN(8) == 0 {
					size = rng.IntN(4097)
				}
				p := Packet(64, psn, size, 1+rng.IntN(12))
				p.Joins = rng.IntN(4) > 0
				ps = append(ps, p)
				psn++
			}
			spans = append(spans, port.Span{To: a.To(ends[k]), Packets: ps})
			want[k] = append(want[k], ps...)
		}
		a.Send(spans...)
		for k := 1; k < len(ends); k++ {
			Match(t, ends[k].Await(0, len(want[k])), want[k], a.Local())
		}
	}
}

func testDestinations(t *testing.T, open Fabric) {
	ends := open.Start(t, 4, 1)
	a := ends[0]
	var spans []port.Span
	want := make([][]rc.Packet, len(ends))
	for i := range 12 {
		k := 1 + i%3
		ps := Run(uint32(64+64*i), 1+i%5, 300, 12)
		spans = append(spans, port.Span{To: a.To(ends[k]), Packets: ps})
		want[k] = append(want[k], ps...)
	}
	spans = append(spans, port.Span{To: a.To(ends[1])})
	a.Send(spans...)
	for k := 1; k < len(ends); k++ {
		Match(t, ends[k].Await(0, len(want[k])), want[k], a.Local())
	}
	a.Send()
}

func testIntact(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	a.Send(port.Span{To: a.To(b), Packets: Run(64, 3, 76, 8)})
	got := b.Await(0, 3)
	flips := 0
	for i := range got {
		for bit := range 8 * len(got[i].Bytes) {
			if bit/8 == 4 {
				continue // routers change the bit
			}
			got[i].Bytes[bit/8] ^= 1 << (bit % 8)
			if b.Shards[0].Intact(&got[i]) {
				t.Errorf("packet %d is intact without bit %d", i, bit)
			}
			got[i].Bytes[bit/8] ^= 1 << (bit % 8)
			flips++
		}
		if !b.Shards[0].Intact(&got[i]) {
			t.Errorf("packet %d is not intact", i)
		}
		other := got[i]
		other.From = netip.AddrPortFrom(other.From.Addr(), other.From.Port()^1)
		if b.Shards[0].Intact(&other) {
			t.Errorf("packet %d is intact from %v", i, other.From)
		}
		flips++
	}
	if n := b.Shards[0].Counters().BadICRC; n != uint64(flips) {
		t.Errorf("%d bad ICRCs are counted, want %d", n, flips)
	}
}

// Packets to an unused address are lost; packets to other peers, and later
// ones, are not.
func testUnknownPeer(t *testing.T, open Fabric) {
	ends := open.Start(t, 3, 1)
	a, b, gone := ends[0], ends[1], ends[2]
	to := a.To(gone)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		lost, ps := Run(64, 3, 100, 100), []rc.Packet{Packet(64, i, 50, 1)}
		_ = a.Shards[0].Send([]port.Span{{To: to, Packets: lost}, {To: a.To(b), Packets: ps}})
		Match(t, b.Await(0, 1), ps, a.Local())
		if n, err := a.Shards[0].Receive(a.Room); n != 0 || err != nil {
			t.Errorf("the sender received %d packets, %v", n, err)
		}
	}
}

func testReadable(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 2)
	a, b := ends[0], ends[1]
	if Readable(t, b.Shards[0]) || Readable(t, b.Shards[1]) {
		t.Error("a shard without packets is readable")
	}
	for range 3 {
		ps := []rc.Packet{Packet(64, 0, 50, 1), Packet(64, 1, 60, 1)}
		a.Send(port.Span{To: a.To(b), Packets: ps})
		b.Await(0, 2)
		if n, err := b.Shards[0].Receive(b.Room); n != 0 || err != nil {
			t.Errorf("%d packets too many, %v", n, err)
		}
		if Readable(t, b.Shards[0]) || Readable(t, b.Shards[1]) {
			t.Error("a shard without packets is readable")
		}
	}
}

// Packets beyond the caller's slice stay queued.
func testShortDestination(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	b.Room = b.Room[:3]
	ps := append(Run(64, 20, 100, 4), Run(64, 11, 500, 500)...)
	a.Send(port.Span{To: a.To(b), Packets: ps})
	Match(t, b.Await(0, len(ps)), ps, a.Local())
	if n, err := b.Shards[0].Receive(nil); n != 0 || err != nil {
		t.Errorf("no room: %d, %v", n, err)
	}
}

func testCounters(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	if n, err := b.Shards[0].Receive(b.Room); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	ps := Run(64, 10, 100, 4)
	a.Send(port.Span{To: a.To(b), Packets: ps})
	bytes := uint64(0)
	for _, x := range b.Await(0, len(ps)) {
		bytes += uint64(len(x.Bytes))
	}
	sent, got := a.Shards[0].Counters(), b.Shards[0].Counters()
	if sent.Sent != 10 || sent.BytesSent != bytes || sent.SendCalls == 0 || sent.SendCalls > 10 {
		t.Errorf("sent %d bytes: %+v", bytes, sent)
	}
	if got.Received != 10 || got.BytesReceived != bytes || got.ReceiveCalls == 0 || got.ReceiveCalls > 10 || got.EmptyCalls == 0 {
		t.Errorf("received %d bytes: %+v", bytes, got)
	}
	if bad := sent.Dropped + sent.BadICRC + got.Overrun + got.Malformed + got.BadICRC; bad != 0 {
		t.Errorf("%d faults: %+v, %+v", bad, sent, got)
	}
}

func testClose(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 3)
	a, b := ends[0], ends[1]
	to := a.To(b)
	b.Send(port.Span{To: b.To(a), Packets: Run(64, 4, 100, 100)})
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range a.Shards {
		if _, err := l.Receive(a.Room); !errors.Is(err, net.ErrClosed) {
			t.Errorf("receive: %v", err)
		}
		if err := l.Send([]port.Span{{To: to, Packets: Run(64, 1, 1, 1)}}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("send: %v", err)
		}
	}
	if _, err := a.Shard(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("shard: %v", err)
	}
	if b.To(a).Addr() != a.Local() {
		t.Errorf("a closed port is at %v", a.Local())
	}
}

// Shards are independent: a goroutine drives each.
func testConcurrency(t *testing.T, open Fabric) {
	const shards, rounds = 4, 50
	ends := open.Start(t, 2, shards)
	var all sync.WaitGroup
	for side := range 2 {
		for shard := range shards {
			all.Go(func() {
				e, other := ends[side], ends[1-side]
				to, err := e.Peer(other.Local())
				if err != nil {
					t.Error(err)
					return
				}
				room := make([]port.Arrival, 16)
				for round := 0; round < rounds; {
					if round%2 == side {
						ps := Run(uint32(64+shard), 3, 100, 20)
						if err := e.Shards[shard].Send([]port.Span{{To: to, Packets: ps}}); err != nil {
							t.Error(err)
							return
						}
						round++
						continue
					}
					for n := 0; n < 3; {
						k, err := e.Shards[shard].Receive(room)
						if err != nil {
							t.Error(err)
							return
						}
						if k == 0 {
							Sleep(t, e.Shards[shard])
						}
						for i := range room[:k] {
							if !e.Shards[shard].Intact(&room[i]) {
								t.Error("not intact")
								return
							}
						}
						n += k
					}
					_ = e.Shards[shard].Counters()
					round++
				}
			})
		}
	}
	all.Wait()
}

func testLinkMTU(t *testing.T, open Fabric) {
	ends := open.Start(t, 2, 1)
	mtu, err := ends[0].LinkMTU(ends[1].Local().Addr())
	if err != nil || mtu < 1280 || mtu > 1<<16 {
		t.Errorf("the link's MTU is %d, %v", mtu, err)
	}
}
