package port_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

func testPeers(t *testing.T, open fabric) {
	e := open.start(t, 1, 1)[0]
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

func testOpensLanesInOrder(t *testing.T, open fabric) {
	p := open(t, 1)[0]
	for _, i := range []int{-1, 1, port.Lanes} {
		if _, err := p.Lane(i); err == nil {
			t.Errorf("lane %d opened first", i)
		}
	}
	for i := range 3 {
		l, err := p.Lane(i)
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Lane(i)
		if err != nil || again != l || again.FD() != l.FD() {
			t.Errorf("lane %d is another one the second time (%v)", i, err)
		}
	}
}

func testLanes(t *testing.T, open fabric) {
	const lanes = 4
	ends := open.start(t, 2, lanes)
	a, b := ends[0], ends[1]
	want := make([][]rc.Packet, lanes)
	var all []rc.Packet
	for i, qp := range []uint32{wire.GSI, 64, 128, 65, 129, 2, 66, 0xffffc2, 3, 0xffffc3, wire.GSI, 64} {
		p := packet(qp, i, 40, 1)
		lane := port.LaneOf(qp)
		want[lane] = append(want[lane], p)
		all = append(all, p)
	}
	a.send(port.Span{To: a.to(b), Packets: all})
	for i := range lanes {
		match(t, b.await(i, len(want[i])), want[i], a.Local())
	}
	for i, l := range b.lanes {
		if n, err := l.Receive(b.room); n != 0 || err != nil {
			t.Errorf("lane %d: %d packets too many, %v", i, n, err)
		}
	}
}

func testLaneThatIsNotOpen(t *testing.T, open fabric) {
	ends := open.start(t, 2, 2)
	a, b := ends[0], ends[1]
	const count = 8
	for i := range count {
		a.send(port.Span{To: a.to(b), Packets: []rc.Packet{packet(uint32(64+40+i), i, 8, 1)}})
	}
	for n := 0; n < count; {
		for _, l := range b.lanes {
			k, err := l.Receive(b.room)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
}

func testOrder(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	a, b := ends[0], ends[1]
	const batch, batches = 50, 20
	for i := range batches {
		var ps []rc.Packet
		for k := range batch {
			ps = append(ps, packet(64, i*batch+k, (i*batch+k)%97, 1))
		}
		a.send(port.Span{To: a.to(b), Packets: ps[:batch/2]}, port.Span{To: a.to(b), Packets: ps[batch/2:]})
		match(t, b.await(0, batch), ps, a.Local())
	}
}

func testSizes(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	a, b := ends[0], ends[1]
	const most = wire.MaxPacket - wire.BTHSize - wire.ICRCSize
	for _, n := range []int{0, 1, 2, 3, 4, 5, 63, 64, 255, 256, 1023, 1024, 1025, 2048, 4095, 4096, most - 1, most} {
		var ps []rc.Packet
		for _, pieces := range []int{0, 1, 2, 7, 30} {
			if n > 0 && pieces > 0 || n == 0 && pieces == 0 {
				ps = append(ps, packet(64, n, n, pieces))
			}
		}
		a.send(port.Span{To: a.to(b), Packets: ps})
		match(t, b.await(0, len(ps)), ps, a.Local())
	}
}

func testRuns(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
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
		ps := run(64, c.count, c.size, c.last)
		a.send(port.Span{To: a.to(b), Packets: ps})
		match(t, b.await(0, len(ps)), ps, a.Local())
	}
}

// Runs that lie next to each other stay apart, whatever their lanes are.
func testRunsOfSeveralQueuePairs(t *testing.T, open fabric) {
	const lanes = 3
	ends := open.start(t, 2, lanes)
	a, b := ends[0], ends[1]
	var all []rc.Packet
	want := make([][]rc.Packet, lanes)
	for i, qp := range []uint32{64, 65, 64, 66, 66, 64} {
		ps := run(qp, 1+i*3, 200, 4*i)
		all = append(all, ps...)
		want[port.LaneOf(qp)] = append(want[port.LaneOf(qp)], ps...)
	}
	a.send(port.Span{To: a.to(b), Packets: all})
	for i := range lanes {
		match(t, b.await(i, len(want[i])), want[i], a.Local())
	}
}

// Whatever is sent, in whatever pieces, with joins that are none: it arrives as it
// was, and in order at each destination.
func testAnything(t *testing.T, open fabric) {
	ends := open.start(t, 3, 1)
	a := ends[0]
	for _, to := range ends[1:] { // few packets wait for the address of a neighbour
		a.send(port.Span{To: a.to(to), Packets: []rc.Packet{packet(64, 0, 0, 0)}})
		to.await(0, 1)
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
				p := packet(64, psn, size, 1+rng.IntN(12))
				p.Joins = rng.IntN(4) > 0
				ps = append(ps, p)
				psn++
			}
			spans = append(spans, port.Span{To: a.to(ends[k]), Packets: ps})
			want[k] = append(want[k], ps...)
		}
		a.send(spans...)
		for k := 1; k < len(ends); k++ {
			match(t, ends[k].await(0, len(want[k])), want[k], a.Local())
		}
	}
}

func testDestinations(t *testing.T, open fabric) {
	ends := open.start(t, 4, 1)
	a := ends[0]
	var spans []port.Span
	want := make([][]rc.Packet, len(ends))
	for i := range 12 {
		k := 1 + i%3
		ps := run(uint32(64+64*i), 1+i%5, 300, 12)
		spans = append(spans, port.Span{To: a.to(ends[k]), Packets: ps})
		want[k] = append(want[k], ps...)
	}
	spans = append(spans, port.Span{To: a.to(ends[1])})
	a.send(spans...)
	for k := 1; k < len(ends); k++ {
		match(t, ends[k].await(0, len(want[k])), want[k], a.Local())
	}
	a.send()
}

func testIntact(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	a, b := ends[0], ends[1]
	a.send(port.Span{To: a.to(b), Packets: run(64, 3, 76, 8)})
	got := b.await(0, 3)
	flips := 0
	for i := range got {
		for bit := range 8 * len(got[i].Bytes) {
			if bit/8 == 4 {
				continue // routers change it
			}
			got[i].Bytes[bit/8] ^= 1 << (bit % 8)
			if b.lanes[0].Intact(&got[i]) {
				t.Errorf("packet %d is intact without bit %d", i, bit)
			}
			got[i].Bytes[bit/8] ^= 1 << (bit % 8)
			flips++
		}
		if !b.lanes[0].Intact(&got[i]) {
			t.Errorf("packet %d is not intact", i)
		}
		stranger := got[i]
		stranger.From = netip.AddrPortFrom(stranger.From.Addr(), stranger.From.Port()^1)
		if b.lanes[0].Intact(&stranger) {
			t.Errorf("packet %d is intact from %v", i, stranger.From)
		}
		flips++
	}
	if n := b.lanes[0].Counters().BadICRC; n != uint64(flips) {
		t.Errorf("%d bad ICRCs are counted, want %d", n, flips)
	}
}

// Where nobody is, packets are lost; those to others are not, and neither are
// later ones.
func testUnknownPeer(t *testing.T, open fabric) {
	ends := open.start(t, 3, 1)
	a, b, gone := ends[0], ends[1], ends[2]
	to := a.to(gone)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		lost, ps := run(64, 3, 100, 100), []rc.Packet{packet(64, i, 50, 1)}
		_ = a.lanes[0].Send([]port.Span{{To: to, Packets: lost}, {To: a.to(b), Packets: ps}})
		match(t, b.await(0, 1), ps, a.Local())
		if n, err := a.lanes[0].Receive(a.room); n != 0 || err != nil {
			t.Errorf("the sender received %d packets, %v", n, err)
		}
	}
}

func testReadable(t *testing.T, open fabric) {
	ends := open.start(t, 2, 2)
	a, b := ends[0], ends[1]
	if readable(t, b.lanes[0]) || readable(t, b.lanes[1]) {
		t.Error("a lane without packets is readable")
	}
	for range 3 {
		ps := []rc.Packet{packet(64, 0, 50, 1), packet(64, 1, 60, 1)}
		a.send(port.Span{To: a.to(b), Packets: ps})
		b.await(0, 2)
		if n, err := b.lanes[0].Receive(b.room); n != 0 || err != nil {
			t.Errorf("%d packets too many, %v", n, err)
		}
		if readable(t, b.lanes[0]) || readable(t, b.lanes[1]) {
			t.Error("a lane without packets is readable")
		}
	}
}

// What does not fit into the caller's slice waits.
func testLittleRoom(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	a, b := ends[0], ends[1]
	b.room = b.room[:3]
	ps := append(run(64, 20, 100, 4), run(64, 11, 500, 500)...)
	a.send(port.Span{To: a.to(b), Packets: ps})
	match(t, b.await(0, len(ps)), ps, a.Local())
	if n, err := b.lanes[0].Receive(nil); n != 0 || err != nil {
		t.Errorf("no room: %d, %v", n, err)
	}
}

func testCounters(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	a, b := ends[0], ends[1]
	if n, err := b.lanes[0].Receive(b.room); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	ps := run(64, 10, 100, 4)
	a.send(port.Span{To: a.to(b), Packets: ps})
	bytes := uint64(0)
	for _, x := range b.await(0, len(ps)) {
		bytes += uint64(len(x.Bytes))
	}
	sent, got := a.lanes[0].Counters(), b.lanes[0].Counters()
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

func testClose(t *testing.T, open fabric) {
	ends := open.start(t, 2, 3)
	a, b := ends[0], ends[1]
	to := a.to(b)
	b.send(port.Span{To: b.to(a), Packets: run(64, 4, 100, 100)})
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range a.lanes {
		if _, err := l.Receive(a.room); !errors.Is(err, net.ErrClosed) {
			t.Errorf("receive: %v", err)
		}
		if err := l.Send([]port.Span{{To: to, Packets: run(64, 1, 1, 1)}}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("send: %v", err)
		}
	}
	if _, err := a.Lane(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("lane: %v", err)
	}
	if b.to(a).Addr() != a.Local() {
		t.Errorf("a closed port is at %v", a.Local())
	}
}

// Lanes do not meet: each is driven by a goroutine of its own.
func testConcurrency(t *testing.T, open fabric) {
	const lanes, rounds = 4, 50
	ends := open.start(t, 2, lanes)
	var all sync.WaitGroup
	for side := range 2 {
		for lane := range lanes {
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
						ps := run(uint32(64+lane), 3, 100, 20)
						if err := e.lanes[lane].Send([]port.Span{{To: to, Packets: ps}}); err != nil {
							t.Error(err)
							return
						}
						round++
						continue
					}
					for n := 0; n < 3; {
						k, err := e.lanes[lane].Receive(room)
						if err != nil {
							t.Error(err)
							return
						}
						if k == 0 {
							sleep(t, e.lanes[lane])
						}
						for i := range room[:k] {
							if !e.lanes[lane].Intact(&room[i]) {
								t.Error("not intact")
								return
							}
						}
						n += k
					}
					_ = e.lanes[lane].Counters()
					round++
				}
			})
		}
	}
	all.Wait()
}

func testLinkMTU(t *testing.T, open fabric) {
	ends := open.start(t, 2, 1)
	mtu, err := ends[0].LinkMTU(ends[1].Local().Addr())
	if err != nil || mtu < 1280 || mtu > 1<<16 {
		t.Errorf("the link's MTU is %d, %v", mtu, err)
	}
}
