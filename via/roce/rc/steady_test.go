package rc_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// pair is two queue pairs back to back: each receives the headers and payload
// that the other emits, without a datagram in between.
type pair struct {
	ends   [2]*rc.QP
	burst  *rc.Burst
	now    time.Duration
	work   rc.Work
	recv   rc.Receive
	in     wire.Packet
	packet int
}

func newPair(tb testing.TB, op rc.Op, size int, lossy bool) *pair {
	p := &pair{burst: rc.NewBurst(64), now: time.Second}
	stash := rc.NewStash(256)
	for i := range p.ends {
		c := newConsumer([]string{"a", "bb"}[i], 1, true, size, 1)
		qp, err := rc.New(rc.Config{
			PeerQP: 5, MTU: wire.MTU4096, SendDepth: 1, ReceiveDepth: 1,
			AllowWrite: true, AllowRead: true, Reads: 8, PeerReads: 8, Stash: stash, Selective: lossy, Line: rc.NewLine(),
		}, c)
		if err != nil {
			tb.Fatal(err)
		}
		p.ends[i] = qp
	}
	p.work = rc.Work{Op: op, Key: remoteKey, Addr: remoteAddr + fence, Segments: [][]byte{make([]byte, size)}}
	p.recv = rc.Receive{Segments: [][]byte{make([]byte, size)}}
	return p
}

// move executes one work. It loses every drop-th packet; 0 loses none.
func (p *pair) move(drop int) bool {
	if p.work.Op == rc.Send && !p.ends[1].PostReceive(&p.recv) || !p.ends[0].Post(&p.work) {
		return false
	}
	for {
		idle := true
		for i, q := range p.ends {
			p.burst.Reset()
			q.Emit(p.burst, p.now)
			for k := range p.burst.Packets() {
				idle = false
				p.packet++
				if drop > 0 && p.packet%drop == 0 {
					continue
				}
				p.deliver(p.ends[1-i], &p.burst.Packets()[k])
			}
			p.now += 10 * time.Microsecond
		}
		if w := p.ends[0].PollSend(); w != nil {
			return w.Status == rc.OK && (w.Op != rc.Send || p.ends[1].PollReceive() == &p.recv)
		}
		if idle {
			p.now += time.Millisecond
			p.ends[0].Timeout(p.now)
		}
	}
}

// deliver passes a packet to Receive, with the payload in place.
func (p *pair) deliver(q *rc.QP, out *rc.Packet) {
	p.in.BTH.Decode(out.Header)
	rest := out.Header[wire.BTHSize:]
	ext := p.in.Opcode.Extensions()
	if ext&wire.ExtRETH != 0 {
		p.in.RETH.Decode(rest)
	}
	if ext&wire.ExtAETH != 0 {
		p.in.AETH.Decode(rest)
	}
	p.in.Payload = nil
	if len(out.Payload) > 0 {
		p.in.Payload = out.Payload[0]
	}
	q.Receive(&p.in, wire.Accepted, p.now)
}

// Neither a packet nor its loss costs an allocation.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, op := range []rc.Op{rc.Send, rc.Write, rc.Read} {
		for _, drop := range []int{0, 17} {
			p := newPair(t, op, 1<<20, drop > 0)
			for range 20 {
				if !p.move(drop) {
					t.Fatalf("op %d, drop %d: the work failed", op, drop)
				}
			}
			if n := testing.AllocsPerRun(20, func() { p.move(drop) }); n != 0 {
				t.Errorf("op %d, drop %d: %v allocations", op, drop, n)
			}
		}
	}
}

// Bulk transfer by packets of 4 KiB: both ends, acknowledgements and one copy,
// without ICRC and sockets.
func BenchmarkBulk(b *testing.B) {
	for op, name := range []string{rc.Send: "send", rc.Write: "write", rc.Read: "read"} {
		b.Run(name, func(b *testing.B) {
			const size = 1 << 20
			p := newPair(b, rc.Op(op), size, false)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if !p.move(0) {
					b.Fatal("the work failed")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*(size/4096)), "ns/packet")
		})
	}
}

// Small messages: a packet and its acknowledgement each.
func BenchmarkSmall(b *testing.B) {
	p := newPair(b, rc.Send, 64, false)
	b.ReportAllocs()
	for b.Loop() {
		if !p.move(0) {
			b.Fatal("the work failed")
		}
	}
}

// The packets of a long write form runs: the first packet, longer by its RETH,
// with one behind it, then as many as a segmented send holds.
func TestRunsOfABurst(t *testing.T) {
	p := newPair(t, rc.Write, 60000, false)
	p.ends[0].Post(&p.work)
	p.ends[0].Emit(p.burst, p.now)
	packets := p.burst.Packets()
	if len(packets) != 15 {
		t.Fatalf("%d packets, want 15", len(packets))
	}
	for i, x := range packets {
		first := i == 0 || i == 2
		if x.Work != &p.work {
			t.Errorf("packet %d belongs to another work", i)
		}
		if x.Joins == first {
			t.Errorf("packet %d of %d bytes: joins %v", i, x.Size, x.Joins)
		}
	}
	if last := packets[14].Size; last >= packets[13].Size {
		t.Errorf("last packet has %d bytes", last)
	}
}

// Packets of several queue pairs form one run while they fit and none is longer
// than the one before, unless Apart separates them.
func TestRunsOfSeveralQueuePairs(t *testing.T) {
	for _, c := range []struct {
		first, second int // bytes
		apart, joins  bool
	}{
		{64, 64, false, true}, {64, 32, false, true}, {32, 64, false, false}, {64, 64, true, false},
	} {
		a, b := newPair(t, rc.Write, c.first, false), newPair(t, rc.Write, c.second, false)
		a.ends[0].Post(&a.work)
		b.ends[0].Post(&b.work)
		a.ends[0].Emit(a.burst, a.now)
		if c.apart {
			a.burst.Apart()
		}
		b.ends[0].Emit(a.burst, b.now)
		packets := a.burst.Packets()
		if len(packets) != 2 || packets[0].Joins || packets[1].Joins != c.joins {
			t.Errorf("%+v: %d packets, of %d and %d bytes, the second joins: %v", c, len(packets), packets[0].Size, packets[1].Size, packets[1].Joins)
		}
	}
}
