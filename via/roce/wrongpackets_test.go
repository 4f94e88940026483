package roce

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

var wrongPackets = flag.Int("roce.wrong", 300_000, "packets of TestWrongPackets")

// target is an engine with one queue pair, whose peer is a viablk end.
type target struct {
	engine *engine
	link   *link
	from   netip.AddrPort
	icrc   wire.ICRC
	tag    uint64
	psn    wire.PSN
	rng    *rand.Rand

	payload [64 + wire.TagSize]byte
}

const targetQP = 0x1234<<shardBits | 1

func newTarget(t *testing.T) *target {
	t.Helper()
	x := &target{from: netip.MustParseAddrPort("[fd00::1]:4791"), rng: rand.New(rand.NewPCG(7, 8)), tag: 0x1122_3344_5566_7788, psn: 0x55}
	at := netip.MustParseAddrPort("[fd00::2]:4791")
	p, err := port.NewNetwork(1, 9000).Open(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	shards := make([]port.Shard, 2)
	for i := range shards {
		if shards[i], err = p.Shard(i); err != nil {
			t.Fatal(err)
		}
	}
	e := &endpoint{local: at, port: p}
	e.shards.Store(new([]*shard))
	x.engine = newShard(e, 1, shards[1]).acquire()
	x.link = &link{endpoint: e, adapter: &adapter{}, qpn: targetQP, shard: x.engine.shard}
	x.link.sends.init(1)
	x.link.receives.init(1)
	tr := &x.link.transport
	tr.init(x.link)
	tr.qp, err = rc.New(rc.Config{
		PeerQP: 7, PeerPSN: x.psn, MTU: wire.MTU1024, SendDepth: 1, ReceiveDepth: 1, AllowWrite: true, AllowRead: true,
		Reads: 1, PeerReads: 1, Stash: x.engine.stash, Selective: true,
	}, tr)
	if err != nil {
		t.Fatal(err)
	}
	tr.route, tr.stage = route{from: x.from, tag: x.tag, mtu: wire.MTU1024}, live
	x.engine.table.add(targetQP, tr)
	x.icrc.Set(x.from, at)
	return x
}

// packet appends a packet of the peer's, or with another tag one that only
// seems to be.
func (x *target) packet(b []byte, tag uint64) []byte {
	opcodes := [...]wire.Opcode{
		wire.RCSendOnly, wire.RCSendOnlyImmediate, wire.RCSendFirst, wire.RCWriteOnly, wire.RCWriteMiddle, wire.RCReadRequest,
		wire.RCAcknowledge, wire.RCReadResponseOnly,
	}
	p := wire.Packet{BTH: wire.BTH{
		Opcode: opcodes[x.rng.IntN(len(opcodes))], PKey: wire.DefaultPKey, DestQP: targetQP, PSN: x.psn.Add(x.rng.IntN(600)),
	}}
	p.AETH.Syndrome = wire.ACK
	wire.PutTag(x.payload[64:], tag)
	p.Payload = x.payload[:]
	return p.Append(b[:0], &x.icrc, wire.Identification{})
}

// receive has the engine receive a packet, and reports whether its queue pair
// got it.
func (x *target) receive(b []byte) bool {
	before := x.link.transport.qp.Counters().Received
	x.engine.dispatch(&port.Arrival{From: x.from, Bytes: b}, 0)
	return x.link.transport.qp.Counters().Received != before
}

// No packet reaches a queue pair whose sender does not know the tag, nor one of
// the peer in which up to three bits are flipped. Those of byte 4 but for the
// queue pair are outside of the checksum: routers may change them.
func TestWrongPackets(t *testing.T) {
	x := newTarget(t)
	var b [256]byte
	if !x.receive(x.packet(b[:], x.tag)) {
		t.Fatal("a right packet does not reach the queue pair")
	}
	x = newTarget(t)
	accepted, untagged, flipped := 0, 0, 0
	for range *wrongPackets {
		var p []byte
		if x.rng.IntN(2) == 0 {
			p = x.packet(b[:], x.rng.Uint64())
			untagged++
		} else {
			p = x.packet(b[:], x.tag)
			x.flip(p)
			flipped++
		}
		if x.receive(p) {
			accepted++
			t.Errorf("%x is accepted", p)
		}
	}
	t.Logf("%d packets with wrong tags, %d with flipped bits, %d accepted", untagged, flipped, accepted)
	c := x.engine.shard.counters.snapshot()
	if c.BadSource < uint64(untagged) || c.BadSource+c.Damaged+c.Unknown != uint64(untagged+flipped) {
		t.Errorf("%d and %d packets are counted as %+v", untagged, flipped, c)
	}
	if s := x.link.transport.qp.Cause(); s != rc.OK {
		t.Errorf("the queue pair is broken: %v", s)
	}
}

// flip flips one to three different bits that the checksum covers.
func (x *target) flip(p []byte) {
	const congestion = 4
	n := 1 + x.rng.IntN(3)
	var at [3]int
	for i := 0; i < n; {
		at[i] = x.rng.IntN(8 * len(p))
		if at[i]/8 == congestion || i > 0 && at[i] == at[0] || i > 1 && at[i] == at[1] {
			continue
		}
		p[at[i]/8] ^= 1 << (at[i] % 8)
		i++
	}
}
