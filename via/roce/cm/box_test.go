package cm_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// box is a Manager with its address, its GUID and its time.
type box struct {
	t    *testing.T
	m    *cm.Manager
	addr netip.AddrPort
	guid uint64
	now  time.Duration
}

const service = wire.ServiceID(0x0106_0000 + 10809)

// newBox returns a Manager whose random numbers are its own.
func newBox(t *testing.T, addr string, change func(*cm.Config)) *box {
	t.Helper()
	b := &box{t: t, addr: netip.MustParseAddrPort(addr), now: time.Second}
	next := uint64(b.addr.Port())<<32 | uint64(b.addr.Addr().AsSlice()[3])<<16
	b.guid = next + 1
	cfg := cm.Config{
		Local: b.addr, GUID: b.guid, MTU: wire.MTU4096,
		Random: func() uint64 { next++; return next },
	}
	if change != nil {
		change(&cfg)
	}
	m, err := cm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.m = m
	return b
}

// pair returns two Managers of which the second listens.
func pair(t *testing.T) (a, b *box) {
	a, b = newBox(t, "10.0.0.1:50000", nil), newBox(t, "10.0.0.2:4791", nil)
	if !b.m.Listen(service) {
		t.Fatal("no listener")
	}
	return a, b
}

func (b *box) request(to *box) *cm.Request {
	return &cm.Request{
		Remote: to.addr, Service: service, MTU: wire.MTU1024,
		End:     cm.End{QP: 0x111, Expects: 0xabcdef, Resources: 4, Depth: 5, RNRRetries: 7},
		Retries: 6, AckTimeout: 17, Private: []byte("hello"),
	}
}

var answer = &cm.Answer{
	End:     cm.End{QP: 0x222, Expects: 0x123456, Resources: 2, Depth: 3, RNRRetries: 6},
	Private: []byte("welcome"),
}

// carry delivers all datagrams of a Manager to this one.
func (b *box) carry(from *box) (n int) {
	b.t.Helper()
	var d cm.Datagram
	for ; from.m.Emit(&d); n++ {
		if d.To != b.addr {
			b.t.Fatalf("a datagram for %v", d.To)
		}
		b.receive(from.addr, d.Bytes[:])
	}
	return n
}

// receive decodes a datagram and passes it to Receive.
func (b *box) receive(from netip.AddrPort, raw []byte) {
	b.t.Helper()
	var p wire.Packet
	if r := p.Decode(append(bytes.Clone(raw), 0, 0, 0, 0), wire.DefaultPKey); r != wire.Accepted {
		b.t.Fatal(r)
	}
	b.m.Receive(from, &p, b.now)
}

// event polls the next event and requires its kind.
func (b *box) event(want cm.Kind) cm.Event {
	b.t.Helper()
	var e cm.Event
	if !b.m.Poll(&e) || e.Kind != want {
		b.t.Fatalf("event %v, want %v", e.Kind, want)
	}
	return e
}

// quiet requires that there is no event.
func (b *box) quiet() {
	b.t.Helper()
	var e cm.Event
	if b.m.Poll(&e) {
		b.t.Fatalf("event %v", e.Kind)
	}
}

// wait advances the time in one step.
func (b *box) wait(d time.Duration) {
	b.now += d
	b.m.Timeout(b.now)
}
