package cm_test

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

func TestConnectAndDisconnect(t *testing.T) {
	a, b := pair(t)
	id, err := a.m.Connect(a.request(b), a.now)
	if err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	asked := b.event(cm.Requested)
	want := cm.Event{
		Kind: cm.Requested, ID: asked.ID, From: a.addr, SameKind: true, GUID: a.guid, Service: service,
		CMA:  wire.CMA{SrcPort: a.addr.Port(), Src: a.addr.Addr(), Dst: b.addr.Addr()},
		Peer: a.request(b).End, MTU: wire.MTU1024, Retries: 6, AckTimeout: 17,
		Private: append([]byte("hello"), make([]byte, wire.UserSize-5)...),
	}
	if !reflect.DeepEqual(asked, want) {
		t.Errorf("requested\n%+v, want\n%+v", asked, want)
	}
	if err := b.m.Accept(asked.ID, answer, b.now); err != nil {
		t.Fatal(err)
	}
	a.carry(b)
	granted := a.event(cm.Granted)
	want = cm.Event{
		Kind: cm.Granted, ID: id, From: b.addr, SameKind: true, GUID: b.guid, Peer: answer.End, Private: answer.Private,
	}
	if !reflect.DeepEqual(granted, want) {
		t.Errorf("granted\n%+v, want\n%+v", granted, want)
	}
	if err := a.m.Establish(id, a.now); err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	b.event(cm.Established)
	a.m.Disconnect(id, a.now)
	b.carry(a)
	b.event(cm.Disconnected)
	a.carry(b)
	a.event(cm.Disconnected)
	for _, x := range []*box{a, b} {
		x.quiet()
		x.wait(3 * time.Second)
		x.event(cm.Released)
		if c := x.m.Counters(); c.Connections != 0 || c.UnknownID != 0 || c.BadSource != 0 || c.Malformed != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// capture reads a message of librdmacm.
func capture(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "wire", "testdata", "captures", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for line := range strings.Lines(string(text)) {
		_, digits, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

// captured decodes a captured message.
func captured[M wire.Message](t *testing.T, name string, m M) M {
	t.Helper()
	if r := m.Decode(capture(t, name)); r != wire.Accepted {
		t.Fatal(r)
	}
	return m
}

// numbers returns a source of random numbers that begins with the given ones.
func numbers(first ...uint64) func() uint64 {
	return func() uint64 {
		n := first[0]
		if len(first) > 1 {
			first = first[1:]
		} else {
			first[0]++
		}
		return n
	}
}

// librdmacm connects and disconnects: its messages are a capture.
func TestCapturedPassive(t *testing.T) {
	b := newBox(t, "10.77.0.1:4791", func(c *cm.Config) { c.Random = numbers(0x55667788) })
	b.m.Listen(wire.TCPService(7174))
	s := &script{box: b}
	linux := netip.MustParseAddrPort("10.77.0.2:52718")
	s.deliver(linux, captured(t, "req-librdmacm", new(wire.REQ)))
	e := b.event(cm.Requested)
	if e.SameKind || e.Peer != (cm.End{QP: 0x11, Expects: 0x886bac, Resources: 1, Depth: 1, RNRRetries: 7}) ||
		e.MTU != wire.MTU1024 || e.CMA.SrcPort != 0xce3e || e.CMA.Src != linux.Addr() || e.From.Port() != wire.Port ||
		!bytes.Equal(e.Private, make([]byte, wire.UserSize)) || e.AckTimeout != 19 || e.Retries != 7 || e.Unreliable {
		t.Errorf("%+v", e)
	}
	a := &cm.Answer{End: cm.End{QP: 0x55, Expects: 0x700001, Resources: 1, Depth: 1, RNRRetries: 7}, AckDelay: 15}
	if err := b.m.Accept(e.ID, a, b.now); err != nil {
		t.Fatal(err)
	}
	want := captured(t, "rep-answered", new(wire.REP))
	want.LocalGUID = b.guid
	if got := received[*wire.REP](s); !reflect.DeepEqual(got, want) {
		t.Errorf("REP\n%+v, want\n%+v", got, want)
	}
	s.deliver(linux, captured(t, "rtu-librdmacm", new(wire.RTU)))
	b.event(cm.Established)
	dreq := captured(t, "dreq-librdmacm", new(wire.DREQ))
	s.deliver(linux, dreq)
	b.event(cm.Disconnected)
	if got := received[*wire.DREP](s); got.TID != dreq.TID || got.LocalID != dreq.RemoteID || got.RemoteID != dreq.LocalID {
		t.Errorf("DREP %+v", got)
	}
	if c := b.m.Counters(); c.BadSource+c.UnknownID+c.Malformed+c.Duplicates != 0 {
		t.Errorf("%+v", c)
	}
}

// REQs that imitate librdmacm equal those of librdmacm, except for the values
// that identify the ends.
func TestCapturedActive(t *testing.T) {
	b := newBox(t, "10.77.0.2:4791", func(c *cm.Config) {
		c.Random = numbers(0x11223344, 0x1122334455667788, 0x91587)
		c.Timeout = 16 * wire.Timeout(20).Duration()
		c.GUID = 0x505400fffe770002
	})
	s := &script{box: b}
	id, err := b.m.Connect(&cm.Request{
		Remote: netip.MustParseAddrPort("10.77.0.1:4791"), Service: wire.TCPService(7174), MTU: wire.MTU1024,
		End:     cm.End{QP: 0x11, Expects: 0x886bac, Resources: 1, Depth: 1, RNRRetries: 7},
		Retries: 7, AckTimeout: 19,
	}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	want := captured(t, "req-librdmacm", new(wire.REQ))
	want.VendorID, want.LocalID, want.TID = cm.VendorID, 0x11223344, 0x1122334455667788
	cma := wire.CMA{SrcPort: wire.Port, Src: b.addr.Addr(), Dst: netip.MustParseAddr("10.77.0.1")}
	cma.Encode(want.Private[:])
	if got := received[*wire.REQ](s); !reflect.DeepEqual(got, want) {
		t.Errorf("REQ\n%+v, want\n%+v", got, want)
	}
	s.deliver(netip.MustParseAddrPort("10.77.0.1:60007"), captured(t, "rep-rxe", new(wire.REP)))
	e := b.event(cm.Granted)
	if e.SameKind || e.From != netip.MustParseAddrPort("10.77.0.1:4791") ||
		e.Peer != (cm.End{QP: 0x14, Expects: 0x046e61, Resources: 4, Depth: 4, RNRRetries: 7}) || len(e.Private) != 196 {
		t.Errorf("%+v", e)
	}
	if err := b.m.Establish(id, b.now); err != nil {
		t.Fatal(err)
	}
	if got := received[*wire.RTU](s); got.TID != 0x1122334455667788 || got.LocalID != 0x11223344 || got.RemoteID != 0x50dc2bdd {
		t.Errorf("RTU %+v", got)
	}
	b.m.Disconnect(id, b.now)
	if got := received[*wire.DREQ](s); got.RemoteQP != 0x14 || got.TID == 0x1122334455667788 || got.Private != (wire.DREQ{}).Private {
		t.Errorf("DREQ %+v", got)
	}
}

// Between viablk ends every message goes to the port that the peer sends from,
// and private data keeps its length.
func TestSameKindPeers(t *testing.T) {
	a, b := pair(t)
	for _, c := range []struct {
		name    string
		private []byte
	}{
		{"nothing", nil},
		{"something", []byte("no")},
		{"all", bytes.Repeat([]byte{7}, 148-cm.MarkSize)},
	} {
		r := a.request(b)
		r.Private = bytes.Repeat([]byte{8}, wire.UserSize)
		id, err := a.m.Connect(r, a.now)
		if err != nil {
			t.Fatal(err)
		}
		b.carry(a)
		e := b.event(cm.Requested)
		if !bytes.Equal(e.Private, r.Private) {
			t.Errorf("private data % x", e.Private)
		}
		if err := b.m.Reject(e.ID, &cm.Refusal{Private: c.private}, b.now); err != nil {
			t.Fatal(err)
		}
		a.carry(b)
		if e := a.event(cm.Rejected); e.ID != id || e.Reason != wire.RejectConsumer || !bytes.Equal(e.Private, c.private) {
			t.Errorf("%s: %+v", c.name, e)
		}
		a.event(cm.Released)
	}
}

// A service outside the IP port spaces has no CMA header: all private data is
// the consumer's.
func TestServiceWithoutHeader(t *testing.T) {
	a, b := pair(t)
	b.m.Listen(0x1234)
	r := a.request(b)
	r.Service, r.Private, r.Unreliable = 0x1234, bytes.Repeat([]byte{9}, cm.MaxPrivate), true
	if _, err := a.m.Connect(r, a.now); err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	e := b.event(cm.Requested)
	if e.CMA != (wire.CMA{}) || !bytes.Equal(e.Private, r.Private) || !e.Unreliable || e.Service != 0x1234 {
		t.Errorf("%+v", e)
	}
}

// A truncated or wrong mark is private data of another implementation.
func TestForeignPrivateData(t *testing.T) {
	for _, private := range []string{"vb", "vbk\xff", "", "hello"} {
		s := newScript(t)
		s.asking()
		rep := s.rep()
		copy(rep.Private[:], private)
		s.deliver(s.peer, rep)
		if e := s.event(cm.Granted); e.SameKind || !bytes.Equal(e.Private, rep.Private[:]) {
			t.Errorf("%q: %+v", private, e)
		}
	}
	s := newScript(t)
	s.asking()
	rep := s.rep()
	copy(rep.Private[:], "vbk\x02abc")
	s.deliver(s.peer, rep) // a viablk end sends from the port that it receives at
	s.quiet()
	s.deliver(s.foreign(), rep)
	if e := s.event(cm.Granted); !e.SameKind || string(e.Private) != "ab" {
		t.Errorf("%+v", e)
	}
}

// The peer rejects a path MTU and suggests another.
func TestInvalidMTU(t *testing.T) {
	a, b := pair(t)
	b2 := newBox(t, "10.0.0.3:4791", func(c *cm.Config) { c.MTU = wire.MTU2048 })
	b2.m.Listen(service)
	for _, to := range []*box{b, b2} {
		r := a.request(to)
		r.MTU = wire.MTU4096
		if _, err := a.m.Connect(r, a.now); err != nil {
			t.Fatal(err)
		}
		to.carry(a)
		if to == b { // the consumer, not the configuration, rejects it
			e := b.event(cm.Requested)
			refusal := &cm.Refusal{Reason: wire.RejectInvalidMTU, MTU: wire.MTU2048}
			if err := b.m.Reject(e.ID, refusal, b.now); err != nil {
				t.Fatal(err)
			}
		}
		a.carry(to)
		if e := a.event(cm.Rejected); e.Reason != wire.RejectInvalidMTU || e.MTU != wire.MTU2048 {
			t.Errorf("%+v", e)
		}
		a.event(cm.Released)
		r.MTU = wire.MTU2048 // the same queue pair may connect again
		if _, err := a.m.Connect(r, a.now); err != nil {
			t.Fatal(err)
		}
		to.carry(a)
		if e := to.event(cm.Requested); e.MTU != wire.MTU2048 {
			t.Errorf("%+v", e)
		}
		a.m = newBox(t, "10.0.0.1:50000", nil).m // forget it
	}
}

// Establish at the passive end replaces a lost RTU.
func TestDataBeforeRTU(t *testing.T) {
	s := newScript(t)
	s.answered()
	for range 2 {
		if err := s.m.Establish(s.id, s.now); err != nil {
			t.Fatal(err)
		}
	}
	s.deliver(s.peer, s.rtu())
	if got := s.effects(); got != "established" {
		t.Error(got)
	}
	s.wait(time.Minute)
	if got := s.effects(); got != "established" {
		t.Error(got)
	}
}

// Both ends of a connection may be at one endpoint.
func TestSelf(t *testing.T) {
	b := newBox(t, "10.0.0.1:50000", nil)
	b.m.Listen(service)
	id, err := b.m.Connect(b.request(b), b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.carry(b)
	asked := b.event(cm.Requested)
	if err := b.m.Accept(asked.ID, answer, b.now); err != nil {
		t.Fatal(err)
	}
	b.carry(b)
	if e := b.event(cm.Granted); e.ID != id || e.Peer != answer.End {
		t.Errorf("%+v", e)
	}
	if err := b.m.Establish(id, b.now); err != nil {
		t.Fatal(err)
	}
	b.carry(b)
	if e := b.event(cm.Established); e.ID != asked.ID {
		t.Errorf("%+v", e)
	}
	b.m.Disconnect(asked.ID, b.now)
	b.carry(b)
	for _, want := range []cm.ID{id, asked.ID} {
		if e := b.event(cm.Disconnected); e.ID != want {
			t.Errorf("%+v, want %v", e, want)
		}
	}
	b.quiet()
}
