package roce_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// overheard is an eavesdropper's knowledge of a connection: the last request in
// each direction.
type overheard struct {
	toY, toX atomic.Pointer[wire.Packet]
	fromX    atomic.Pointer[netip.AddrPort]
}

func (o *overheard) listen(from, to netip.AddrPort, b []byte) bool {
	var p wire.Packet
	if p.Decode(b, wire.DefaultPKey) == wire.Accepted && p.DestQP != wire.GSI && p.Opcode.Flags()&wire.Response == 0 {
		p.Payload = bytes.Clone(p.Payload)
		if to.Addr().As4()[3] == 2 {
			o.toY.Store(&p)
			o.fromX.Store(&from)
		} else {
			o.toX.Store(&p)
		}
	}
	return false
}

// unknownPeer is an address of the network that sends arbitrary packets.
type unknownPeer struct {
	t     *testing.T
	shard port.Shard
	port  port.Port
}

func newUnknownPeer(t *testing.T, n *port.Network, addr string) *unknownPeer {
	t.Helper()
	p, err := n.Open(netip.MustParseAddrPort(addr))
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	l, err := p.Shard(0)
	check(t, err)
	return &unknownPeer{t, l, p}
}

// send sends a packet with a valid ICRC.
func (s *unknownPeer) send(to string, p *wire.Packet) {
	s.t.Helper()
	peer, err := s.port.Peer(netip.MustParseAddrPort(to))
	check(s.t, err)
	var room [wire.MaxHeader]byte
	n := p.Put(room[:], len(p.Payload))
	packet := rc.Packet{
		Header: room[:n], Payload: [][]byte{p.Payload}, Trailer: make([]byte, int(p.Pad)+wire.ICRCSize),
		Size: n + len(p.Payload) + int(p.Pad) + wire.ICRCSize,
	}
	check(s.t, s.shard.Send([]port.Span{{To: peer, Packets: []rc.Packet{packet}}}))
}

// hostile is a connection over a network with an eavesdropper, and an attacker
// at another address.
type hostile struct {
	x, y     *party
	provider *roce.Provider
	heard    overheard
	attacker *unknownPeer
}

// atY returns the counters of y's shards.
func (h *hostile) atY(addr string) *roce.EndpointStatistics {
	for _, e := range h.provider.Statistics() {
		if e.Local.String() == addr {
			return &e
		}
	}
	return new(roce.EndpointStatistics)
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	n := port.NewNetwork(1, 9000)
	h := &hostile{}
	n.SetFaults(port.Faults{Lose: h.heard.listen})
	p := roce.New(roce.Options{Open: n.Open})
	h.provider = p
	h.x, h.y = newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	link(t, "10.0.0.2", h.x.vi, h.y.vi, h.y.nic)
	h.attacker = newUnknownPeer(t, n, "10.0.0.66:4791")
	h.works(t)
	return h
}

// works checks that the connection transfers messages.
func (h *hostile) works(t *testing.T) {
	t.Helper()
	for _, ends := range [][2]*party{{h.x, h.y}, {h.y, h.x}} {
		from, to := ends[0], ends[1]
		from.used, to.used = 0, 0
		src := from.payload(0, 5000)
		for i := range src {
			src[i] = byte(rand.Uint32())
		}
		check(t, to.vi.PostRecv(to.build(via.OpRecv, 10_000, 5000, nil)))
		check(t, from.vi.PostSend(from.build(via.OpSend, 0, 5000, nil)))
		done := 0
		within(t, "a message", func() bool { done += from.poll() + to.poll(); return done == 2 })
		if !bytes.Equal(to.payload(10_000, 5000), src) {
			t.Fatal("the message differs")
		}
	}
	if c := slices.Concat(h.x.codes(), h.y.codes()); len(c) != 0 {
		t.Fatalf("callbacks: %v", c)
	}
}

func (h *hostile) close() {
	h.x.close()
	h.y.close()
}

// An attacker with all numbers of a connection, but another address, can
// neither write nor read memory nor break the connection.
func TestPacketsFromWrongSource(t *testing.T) {
	h := newHostile(t)
	heard := *h.heard.toY.Load()
	secret := h.y.payload(20_000, 64)
	copy(secret, "a secret")
	before := bytes.Clone(secret)
	key, addr := h.y.mem.Handle(), h.y.addr(20_000)
	sent := uint64(0)
	for ahead := range 5 {
		for _, p := range []wire.Packet{
			{BTH: wire.BTH{Opcode: wire.RCWriteOnly}, RETH: wire.RETH{Addr: addr, Key: key, Length: 64}, Payload: make([]byte, 64)},
			{BTH: wire.BTH{Opcode: wire.RCReadRequest}, RETH: wire.RETH{Addr: addr, Key: key, Length: 64}},
			{BTH: wire.BTH{Opcode: wire.RCSendOnly}, Payload: make([]byte, 64)},
			{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: wire.NAKRemoteAccess}},
			{BTH: wire.BTH{Opcode: wire.RCSendMiddle}, Payload: make([]byte, 4096)},
			{BTH: wire.BTH{Opcode: wire.UCSendOnly}, Payload: make([]byte, 64)},
		} {
			p.PKey, p.DestQP, p.PSN, p.AckRequest = wire.DefaultPKey, heard.DestQP, heard.PSN.Add(ahead), true
			h.attacker.send("10.0.0.2:4791", &p)
			sent++
		}
	}
	h.works(t)
	if n := badSource(h.atY("10.0.0.2:4791")); n != sent {
		t.Errorf("%d of %d packets are counted as bad_source", n, sent)
	}
	if !bytes.Equal(secret, before) {
		t.Error("the attacker wrote to memory")
	}
	var arrivals [16]port.Arrival
	if n, err := h.attacker.shard.Receive(arrivals[:]); n != 0 || err != nil {
		t.Errorf("the attacker got %d answers, %v", n, err)
	}
	h.close()
}

// A flood of packets for unknown queue pairs, or from wrong sources, allocates
// no memory and gets few answers, and the connection works on.
func TestFloodFromUnknownPeers(t *testing.T) {
	h := newHostile(t)
	h.flood(t, "10.0.0.2:4791")
	h.close()
}

// TestFloodFromUnknownPeersOverSockets is the same over UDP, where the socket
// buffer may overflow.
func TestFloodFromUnknownPeersOverSockets(t *testing.T) {
	s := newSpied(t)
	p, err := port.OpenUDP(netip.AddrPortFrom(s.px.Addr(), 0), port.UDPOptions{})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	l, err := p.Shard(0)
	check(t, err)
	s.attacker = &unknownPeer{t, l, p}
	s.heard.toY.Store(&wire.Packet{BTH: wire.BTH{DestQP: s.qp}})
	s.flood(t, s.py.String())
	s.close()
}

// flood sends packets to y's address, half of them for y's queue pair.
func (h *hostile) flood(t *testing.T, to string) {
	t.Helper()
	qp := h.heard.toY.Load().DestQP
	packet := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey}, Payload: make([]byte, 1024)}
	var arrivals [64]port.Arrival
	answers, sent := 0, uint64(0)
	counted := func() (n uint64) {
		e := h.atY(to)
		n = badSource(e) + unknown(e)
		for i := range e.Shards {
			n += e.Shards[i].Port.Overrun
		}
		return n
	}
	flood := func(n int) {
		for i := range n {
			packet.DestQP = (uint32(i)<<6 | qp&63) &^ (1 << 23)
			if i%2 == 0 {
				packet.DestQP = qp
			}
			h.attacker.send(to, &packet)
			if sent++; i%100 == 99 { // what waits in the network is memory, too
				within(t, "the packets to be counted", func() bool {
					h.y.poll()
					return counted() == sent
				})
				for n := 1; n > 0; answers += n {
					var err error
					n, err = h.attacker.shard.Receive(arrivals[:])
					check(t, err)
				}
			}
		}
	}
	began := time.Now()
	const first, then = 5000, 20_000
	flood(first)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	flood(then)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if most := 128 + int(time.Since(began)/time.Millisecond) + 1; answers == 0 || answers > most {
		t.Errorf("the flood got %d answers, at most %d are allowed", answers, most)
	}
	h.works(t)
}

// A connected peer that uses invalid keys or addresses accesses no memory, and
// its connection breaks.
func TestPeerWithInvalidKeys(t *testing.T) {
	for name, corrupt := range map[string]func(h *hostile, d *via.Descriptor){
		"another generation": func(h *hostile, d *via.Descriptor) {
			d.SetRemote(h.y.addr(0), h.y.mem.Handle()^1<<16)
		},
		"another index":    func(h *hostile, d *via.Descriptor) { d.SetRemote(h.y.addr(0), h.y.mem.Handle()^1) },
		"before the start": func(h *hostile, d *via.Descriptor) { d.SetRemote(h.y.mem.Addr()-1, h.y.mem.Handle()) },
		"beyond the end": func(h *hostile, d *via.Descriptor) {
			d.SetRemote(h.y.mem.Addr()+arenaSize-63, h.y.mem.Handle())
		},
		"around the end of addresses": func(h *hostile, d *via.Descriptor) { d.SetRemote(^uint64(0)-10, h.y.mem.Handle()) },
	} {
		for verb, op := range map[string]via.Opcode{"write": via.OpRdmaWrite, "read": via.OpRdmaRead} {
			t.Run(verb+", "+name, func(t *testing.T) { refusesAccess(t, op, corrupt) })
		}
	}
}

// refusesAccess posts an operation at x that y does not allow.
func refusesAccess(t *testing.T, op via.Opcode, corrupt func(h *hostile, d *via.Descriptor)) {
	t.Helper()
	h := newHostile(t)
	before, local := bytes.Clone(h.y.arena.Bytes()), bytes.Clone(h.x.payload(0, 64))
	h.x.used = 0
	d := h.x.desc()
	d.Reset(op)
	corrupt(h, d)
	d.AddSegment(h.x.addr(0), h.x.mem.Handle(), 64)
	check(t, h.x.vi.PostSend(d))
	var status via.Status
	within(t, "the refusal", func() bool {
		h.y.cq.Poll(h.y.batch[:])
		if n := h.x.cq.Poll(h.x.batch[:]); n != 0 {
			status = h.x.batch[0].Status
		}
		return status != 0 && h.y.vi.State() == via.StateError && h.x.vi.State() == via.StateError
	})
	if status&via.StatusErrorMask != via.StatusRdmaProtError {
		t.Errorf("the operation completed with %v", status)
	}
	if !bytes.Equal(h.y.arena.Bytes(), before) || !bytes.Equal(h.x.payload(0, 64), local) {
		t.Error("memory has changed")
	}
	h.close()
}
