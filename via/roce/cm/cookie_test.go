package cm_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// crowd fills a Manager with requests of as many addresses as it takes from
// requesters that prove nothing.
func (s *script) crowd() {
	s.t.Helper()
	for n := range 32 {
		s.unknownPeer(n)
		s.requested()
	}
	s.unknownPeer(1000)
}

// challenged has the Manager ask the peer for a cookie, and returns it.
func (s *script) challenged() []byte {
	s.t.Helper()
	s.deliver(s.peer, s.req())
	s.quiet()
	rej := received[*wire.REJ](s)
	s.silent()
	data := rej.Private[:]
	if s.vendor == cm.VendorID {
		data = data[cm.MarkSize:]
	}
	cookie := wire.Cookie(data[:wire.CookieSize])
	if rej.Reason != wire.RejectNoResources || rej.TID != s.tid || rej.RemoteID != s.peerID || cookie == nil {
		s.t.Fatalf("%+v", rej)
	}
	return bytes.Clone(cookie)
}

// withCookie is req with a cookie.
func (s *script) withCookie(cookie []byte) *wire.REQ {
	req := s.req()
	wire.PutCookie(req.Private[:], cookie)
	return req
}

// A crowded Manager takes a request with the cookie that it asked for, and
// gives the consumer the data without it.
func TestCookie(t *testing.T) {
	for name, vendor := range map[string]uint32{"viablk": cm.VendorID, "another": 0} {
		s := newScript(t)
		s.crowd()
		s.vendor = vendor
		pending := s.m.Counters().Pending
		cookie := s.challenged()
		if n := s.m.Counters().Pending; n != pending {
			t.Errorf("%s: %d requests are pending, %d before", name, n, pending)
		}
		s.deliver(s.peer, s.withCookie(cookie))
		e := s.event(cm.Requested)
		if want := append([]byte("hello"), make([]byte, wire.UserSize-5)...); !bytes.Equal(e.Private, want) {
			t.Errorf("%s: the consumer gets %q", name, e.Private)
		}
		s.silent()
	}
}

// Requests in the name of an address do not keep its host from connecting: from
// eight pending ones of an address on, the next of it needs a cookie, and that
// of another does not.
func TestCookieOfBusyAddress(t *testing.T) {
	s := newScript(t)
	for range 8 {
		s.peerID, s.peerQP, s.tid = s.peerID+1, s.peerQP+1, s.tid+1
		s.requested()
	}
	s.peerID, s.peerQP, s.tid = s.peerID+1, s.peerQP+1, s.tid+1
	cookie := s.challenged()
	if n := s.m.Counters().Pending; n != 8 {
		t.Errorf("%d requests are pending", n)
	}
	s.deliver(s.peer, s.withCookie(cookie))
	s.event(cm.Requested)
	s.unknownPeer(1000)
	s.requested()
}

// A cookie is not valid for another address, endpoint, port or request, nor
// after two changes of the key.
func TestOtherCookies(t *testing.T) {
	for name, change := range map[string]func(s *script, cookie []byte){
		"bit":     func(_ *script, cookie []byte) { cookie[7] ^= 1 },
		"address": func(s *script, _ []byte) { s.peer = netip.MustParseAddrPort("10.9.8.7:50000") },
		"port":    func(s *script, _ []byte) { s.peer = netip.AddrPortFrom(s.peer.Addr(), 50001) },
		"GUID":    func(s *script, _ []byte) { s.guid++ },
		"ID":      func(s *script, _ []byte) { s.peerID++ },
	} {
		s := newScript(t)
		s.crowd()
		s.vendor = cm.VendorID
		cookie := s.challenged()
		change(s, cookie)
		s.deliver(s.peer, s.withCookie(cookie))
		if got := s.effects(); got != "REJ 3 to "+s.peer.String()+", "+s.m.State(s.id) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// The key changes every two minutes; the one before stays valid.
func TestCookieExpires(t *testing.T) {
	for age, isValid := range map[time.Duration]bool{
		time.Second: true, 3 * time.Minute: true, 5 * time.Minute: false, time.Hour: false,
	} {
		s := newScript(t)
		s.crowd()
		cookie := s.challenged()
		s.now += age   // the crowd stays: no timer runs
		s.challenged() // the key changes if it is due
		s.deliver(s.peer, s.withCookie(cookie))
		var e cm.Event
		if got := s.m.Poll(&e); got != isValid {
			t.Errorf("after %v: %v", age, got)
		}
	}
}

// A requester returns the cookie that it is asked for, and connects through a
// crowd; without a crowd none is asked for.
func TestRequesterReturnsCookie(t *testing.T) {
	for name, private := range map[string]string{"short": "hello", "as long as fits": string(bytes.Repeat([]byte{'x'}, wire.UserSize-wire.CookieSize))} {
		s := newScript(t)
		s.crowd()
		a := newBox(t, "10.0.0.7:50000", nil)
		r := a.request(s.box)
		r.Private = []byte(private)
		if _, err := a.m.Connect(r, a.now); err != nil {
			t.Fatal(err)
		}
		s.carry(a)
		s.quiet()
		a.carry(s.box)
		a.quiet()
		s.carry(a)
		if e := s.event(cm.Requested); !bytes.HasPrefix(e.Private, []byte(private)) || len(bytes.Trim(e.Private[len(private):], "\x00")) != 0 {
			t.Errorf("%s: the consumer gets %q", name, e.Private)
		}
	}
}

// A requester without room for a cookie, or that is asked again and again,
// gives up.
func TestRequesterWithoutCookie(t *testing.T) {
	s := newScript(t)
	r := s.request(&box{addr: s.foreign()})
	r.Private = bytes.Repeat([]byte{'x'}, wire.UserSize-wire.CookieSize+1)
	var err error
	if s.id, err = s.m.Connect(r, s.now); err != nil {
		t.Fatal(err)
	}
	req := received[*wire.REQ](s)
	s.tid = req.TID
	challenge := func() *wire.REJ {
		rej := s.rej(wire.RejectNoResources)
		rej.LocalID = 0
		wire.PutCookie(rej.Private[:wire.CookieSize], make([]byte, wire.CookieCode))
		return rej
	}
	s.deliver(s.peer, challenge())
	s.event(cm.Rejected)
	s.silent()

	s = newScript(t)
	s.asking()
	for n := 1; ; n++ {
		s.deliver(s.peer, challenge())
		var e cm.Event
		if s.m.Poll(&e) {
			if e.Kind != cm.Rejected || n != 9 {
				t.Errorf("%v after %d challenges", e.Kind, n)
			}
			break
		}
		received[*wire.REQ](s)
	}
}

// A flood of requests from many addresses gets at most twice as many messages,
// whatever happens to the requests.
func TestReflection(t *testing.T) {
	s := newScript(t)
	sent, got := 0, 0
	count := func() {
		var d cm.Datagram
		for s.m.Emit(&d) {
			got++
		}
		var e cm.Event
		for s.m.Poll(&e) {
			if e.Kind == cm.Requested {
				if err := s.m.Accept(e.ID, answer, s.now); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for n := range 2000 {
		s.unknownPeer(n)
		s.vendor = uint32(n%2) * cm.VendorID
		s.deliver(s.peer, s.req())
		sent++
		count()
		s.wait(5 * time.Millisecond)
		count()
	}
	for range 100 {
		s.wait(time.Second)
		count()
	}
	if got > 2*sent || got < sent {
		t.Errorf("%d messages for %d", got, sent)
	}
	if n := s.m.Counters().Connections; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// A request without its cookie takes no state and allocates nothing.
func TestChallengeAllocatesNothing(t *testing.T) {
	s := newScript(t)
	s.crowd()
	s.challenged()
	var p wire.Packet
	if r := p.Decode(append(envelop(s.req()), 0, 0, 0, 0), wire.DefaultPKey); r != wire.Accepted {
		t.Fatal(r)
	}
	before := s.m.Counters().Connections
	var d cm.Datagram
	if n := testing.AllocsPerRun(1000, func() {
		s.m.Receive(s.peer, &p, s.now)
		for s.m.Emit(&d) {
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := s.m.Counters().Connections; n != before {
		t.Errorf("%d connections, %d before", n, before)
	}
}
