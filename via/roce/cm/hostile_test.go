package cm_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// unknownPeer makes the script's peer the n-th one, at the n-th address.
func (s *script) unknownPeer(n int) {
	s.peer = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}), 50000)
	s.peerID, s.peerQP, s.guid, s.tid = uint32(n+1), uint32(n+2), uint64(n+1), uint64(n)
}

// bounded requires that the Manager holds no more state than its configuration
// permits.
func (s *script) bounded(pending int) {
	s.t.Helper()
	connections, names, queuePairs, lists, alarms, events, messages := s.m.Footprint()
	if connections > 2*pending || names > 2*pending || queuePairs > 2*pending || lists > 2*pending || alarms > 2*pending ||
		events > 2*pending || messages > 1024 {
		s.t.Fatalf("%d connections, %d names, %d queue pairs, %d in lists, %d alarms, %d events, %d messages",
			connections, names, queuePairs, lists, alarms, events, messages)
	}
}

// proven has all requesters count as if they had cookies.
func proven(c *cm.Config) { c.Unproven, c.UnprovenPerAddr = 1<<20, 1<<20 }

// Any number of requests without an answer of the consumer takes bounded state;
// the newest remain.
func TestFlood(t *testing.T) {
	s := newScriptOf(t, proven)
	for n := range 10000 {
		s.unknownPeer(n)
		s.deliver(s.peer, s.req())
		if n%2 == 0 {
			s.deliver(s.peer, s.gone()) // some peers give up
		}
		s.bounded(256)
	}
	s.legitimate()
	if c := s.m.Counters(); c.Evicted == 0 || c.Pending > 256 {
		t.Errorf("%+v", c)
	}
}

// Requests from one address evict each other and no others.
func TestFloodFromOneAddress(t *testing.T) {
	s := newScriptOf(t, proven)
	s.requested()
	first := s.id
	for n := range 10000 {
		s.unknownPeer(n)
		s.peer = netip.MustParseAddrPort("10.9.9.9:1")
		s.deliver(s.peer, s.req())
	}
	if got := s.m.Counters().Pending; got != 33 {
		t.Errorf("%d requests are pending", got)
	}
	if err := s.m.Accept(first, answer, s.now); err != nil {
		t.Error(err)
	}
	s.peer = netip.MustParseAddrPort("10.9.9.9:1")
	s.legitimate()
}

// Peers that never send their RTU: a new request is dropped while the RTUs may
// still arrive, and then evicts the oldest, whose consumer gets an event.
func TestFloodOfAnsweredRequests(t *testing.T) {
	s := newScriptOf(t, proven)
	accepted := make(map[cm.ID]bool)
	flood := func(n int) {
		s.unknownPeer(n)
		s.deliver(s.peer, s.req())
		var e cm.Event
		for s.m.Poll(&e) {
			switch e.Kind {
			case cm.Requested:
				accepted[e.ID] = true
				if err := s.m.Accept(e.ID, answer, s.now); err != nil {
					t.Fatal(err)
				}
			case cm.TimedOut:
				t.Fatal("an RTU may come, and its connection has given way")
			}
		}
	}
	for n := range 300 {
		flood(n)
		var d cm.Datagram
		for s.m.Emit(&d) {
		}
		s.bounded(256)
	}
	if c := s.m.Counters(); c.Evicted != 44 || c.Pending != 256 || len(accepted) != 256 {
		t.Errorf("%d accepted, %+v", len(accepted), c)
	}
	s.now += time.Second
	s.deliver(s.peer, s.req())
	if e := s.event(cm.TimedOut); !accepted[e.ID] {
		t.Error("who was never accepted has timed out")
	}
	s.legitimate()
	s.wait(time.Minute)
	s.wait(3 * time.Second)
	if c := s.m.Counters(); c.Connections != 1 || c.Pending != 0 {
		t.Errorf("%+v", c)
	}
}

// legitimate requires that a genuine requester connects despite the flood. It
// repeats its REQ like a Manager.
func (s *script) legitimate() {
	s.t.Helper()
	var e cm.Event
	for s.m.Poll(&e) {
	}
	var d cm.Datagram
	for s.m.Emit(&d) {
	}
	s.peerID, s.peerQP, s.guid, s.tid = 0x5a5a5a5a, 0x5a5a5a, 0x5a5a, 0x5a5a
	s.deliver(s.peer, s.req())
	for s.m.Poll(&e) {
		if e.Kind == cm.Requested && e.GUID == s.guid {
			s.id = e.ID
		}
	}
	if err := s.m.Accept(s.id, answer, s.now); err != nil {
		s.t.Fatal(err)
	}
	s.deliver(s.peer, s.rtu())
	if got := s.m.State(s.id); got != "established" {
		s.t.Errorf("the legitimate one is %s", got)
	}
}

// Time-wait is bounded however many connections end in a short time.
func TestFloodOfShortConnections(t *testing.T) {
	s := newScript(t)
	for n := range 6000 {
		s.unknownPeer(n)
		s.requested()
		if err := s.m.Accept(s.id, answer, s.now); err != nil {
			t.Fatal(err)
		}
		s.deliver(s.peer, s.rej(wire.RejectConsumer))
		var d cm.Datagram
		for s.m.Emit(&d) {
		}
		var e cm.Event
		for s.m.Poll(&e) {
		}
	}
	if n := s.m.Counters().Connections; n != 4096 {
		t.Errorf("%d connections are in time-wait", n)
	}
	s.wait(3 * time.Second)
	if n := s.m.Counters().Connections; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// Unauthenticated peers that cause answers fill at most the output queue.
func TestFloodOfAnswers(t *testing.T) {
	s := newScript(t)
	for n := range 5000 {
		s.unknownPeer(n)
		s.deliver(s.peer, s.dreq())
	}
	if c := s.m.Counters(); c.Dropped != 5000-1024 || c.UnknownID != 5000 {
		t.Errorf("%+v", c)
	}
	var d cm.Datagram
	for n := range 1024 {
		if !s.m.Emit(&d) {
			t.Fatalf("%d messages", n)
		}
	}
	s.silent()
}

// A replayed REQ of a released connection is a new request. Its genuine sender
// does not know the connection and rejects the REP.
func TestReplay(t *testing.T) {
	a, b := pair(t)
	if _, err := a.m.Connect(a.request(b), a.now); err != nil {
		t.Fatal(err)
	}
	var d cm.Datagram
	a.m.Emit(&d)
	b.receive(a.addr, d.Bytes[:])
	e := b.event(cm.Requested)
	if err := b.m.Reject(e.ID, &cm.Refusal{}, b.now); err != nil {
		t.Fatal(err)
	}
	a.carry(b)
	a.event(cm.Rejected)
	a.event(cm.Released)
	b.wait(time.Minute)
	b.event(cm.Released)

	b.receive(a.addr, d.Bytes[:])
	e = b.event(cm.Requested)
	if err := b.m.Accept(e.ID, answer, b.now); err != nil {
		t.Fatal(err)
	}
	a.carry(b)
	a.quiet()
	b.carry(a)
	if e := b.event(cm.Rejected); e.Reason != wire.RejectInvalidID {
		t.Errorf("%+v", e)
	}
}

// Packets that are not messages to queue pair 1 are counted and dropped.
func TestMalformedPackets(t *testing.T) {
	for name, change := range map[string]func(*wire.Packet){
		"another queue pair": func(p *wire.Packet) { p.DestQP = 2 },
		"from another":       func(p *wire.Packet) { p.DETH.SourceQP = 2 },
		"Q_Key":              func(p *wire.Packet) { p.DETH.QKey++ },
		"immediate data":     func(p *wire.Packet) { p.Opcode = wire.UDSendOnlyImmediate },
		"RC":                 func(p *wire.Packet) { p.Opcode = wire.RCSendOnly },
		"short":              func(p *wire.Packet) { p.Payload = p.Payload[:255] },
		"long":               func(p *wire.Packet) { p.Payload = append(p.Payload, 0) },
		"empty":              func(p *wire.Packet) { p.Payload = nil },
		"class":              func(p *wire.Packet) { p.Payload[1] = 3 },
		"class version":      func(p *wire.Packet) { p.Payload[2] = 1 },
		"method":             func(p *wire.Packet) { p.Payload[3] = 1 },
		"attribute":          func(p *wire.Packet) { p.Payload[17] = 0x19 },
	} {
		s := newScript(t)
		var p wire.Packet
		if r := p.Decode(append(envelop(s.req()), 0, 0, 0, 0), wire.DefaultPKey); r != wire.Accepted {
			t.Fatal(r)
		}
		change(&p)
		s.m.Receive(s.peer, &p, s.now)
		if got := s.effects(); got != "gone" || s.m.Counters() != (cm.Counters{Received: 1, Malformed: 1}) {
			t.Errorf("%s: %s, %+v", name, got, s.m.Counters())
		}
	}
}

func TestConfig(t *testing.T) {
	good := cm.Config{Local: netip.MustParseAddrPort("10.0.0.1:4791"), GUID: 1, MTU: wire.MTU1024}
	if _, err := cm.New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*cm.Config){
		"no address":       func(c *cm.Config) { c.Local = netip.AddrPort{} },
		"wildcard":         func(c *cm.Config) { c.Local = netip.MustParseAddrPort("0.0.0.0:4791") },
		"no port":          func(c *cm.Config) { c.Local = netip.MustParseAddrPort("10.0.0.1:0") },
		"no GUID":          func(c *cm.Config) { c.GUID = 0 },
		"no MTU":           func(c *cm.Config) { c.MTU = 0 },
		"negative time":    func(c *cm.Config) { c.ServiceTimeout = -1 },
		"negative pending": func(c *cm.Config) { c.Pending = -1 },
	} {
		c := good
		change(&c)
		if _, err := cm.New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Connect refuses values that no message can carry, and keeps no state.
func TestInvalidRequests(t *testing.T) {
	for name, change := range map[string]func(*cm.Request){
		"no address":   func(r *cm.Request) { r.Remote = netip.AddrPort{} },
		"wildcard":     func(r *cm.Request) { r.Remote = netip.MustParseAddrPort("[::]:4791") },
		"no port":      func(r *cm.Request) { r.Remote = netip.MustParseAddrPort("10.0.0.2:0") },
		"MTU":          func(r *cm.Request) { r.MTU = 6 },
		"retries":      func(r *cm.Request) { r.Retries = 8 },
		"time-out":     func(r *cm.Request) { r.AckTimeout = 32 },
		"queue pair":   func(r *cm.Request) { r.End.QP = 1 },
		"long number":  func(r *cm.Request) { r.End.QP = 1 << 24 },
		"PSN":          func(r *cm.Request) { r.End.Expects = 1 << 24 },
		"RNR retries":  func(r *cm.Request) { r.End.RNRRetries = 8 },
		"private data": func(r *cm.Request) { r.Private = make([]byte, wire.UserSize+1) },
		"all private":  func(r *cm.Request) { r.Service, r.Private = 1, make([]byte, cm.MaxPrivate+1) },
	} {
		s := newScript(t)
		r := s.request(&box{addr: s.foreign()})
		change(r)
		if id, err := s.m.Connect(r, s.now); !errors.Is(err, cm.ErrRequest) || id != 0 {
			t.Errorf("%s: %v, %v", name, id, err)
		}
		s.bounded(0)
		s.silent()
	}
	s := newScript(t)
	s.vendor = cm.VendorID
	s.requested()
	for name, a := range map[string]*cm.Answer{
		"queue pair":   {End: cm.End{QP: 0}},
		"private data": {End: answer.End, Private: make([]byte, 193)},
	} {
		if err := s.m.Accept(s.id, a, s.now); !errors.Is(err, cm.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.m.Reject(s.id, &cm.Refusal{Private: make([]byte, 145)}, s.now); !errors.Is(err, cm.ErrRequest) {
		t.Error(err)
	}
	s.silent()
	if err := s.m.Accept(s.id, answer, s.now); err != nil {
		t.Error(err)
	}
}

// Without Config.Random the Manager uses the system's generator.
func TestSystemRandom(t *testing.T) {
	b := newBox(t, "10.0.0.1:4791", func(c *cm.Config) { c.Random = nil })
	to := &box{addr: netip.MustParseAddrPort("10.0.0.2:4791")}
	seen := make(map[cm.ID]bool)
	for range 100 {
		id, err := b.m.Connect(b.request(to), b.now)
		if err != nil {
			t.Fatal(err)
		}
		seen[id] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d IDs", len(seen))
	}
}

func TestKindString(t *testing.T) {
	for k, want := range map[cm.Kind]string{cm.Requested: "requested", cm.Released: "released", 0: "event-0", 200: "event-200"} {
		if got := k.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
