package cm_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// The Manager rejects bad REQs without the consumer, with an acceptable value.
func TestRefusedREQ(t *testing.T) {
	sameKind := netip.MustParseAddr("10.0.0.1").As16()
	for _, c := range []struct {
		name   string
		change func(*wire.REQ)
		reason wire.Reason
		ari    []byte
	}{
		{"service", func(m *wire.REQ) { m.ServiceID++ }, wire.RejectInvalidServiceID, nil},
		{"reliable datagram", func(m *wire.REQ) { m.Transport = wire.RD }, wire.RejectInvalidTransport, nil},
		{"extended transport", func(m *wire.REQ) { m.Transport = 3 }, wire.RejectInvalidTransport, nil},
		{"no MTU", func(m *wire.REQ) { m.MTU = 0 }, wire.RejectInvalidMTU, []byte{5}},
		{"unknown MTU", func(m *wire.REQ) { m.MTU = 6 }, wire.RejectInvalidMTU, []byte{5}},
		{"GID of another", func(m *wire.REQ) { m.Primary.LocalGID[15]++ }, wire.RejectInvalidGID, sameKind[:]},
		{"GID of no IP address", func(m *wire.REQ) { m.Primary.LocalGID[10] = 0 }, wire.RejectInvalidGID, sameKind[:]},
		{"GID for another", func(m *wire.REQ) { m.Primary.RemoteGID[15]++ }, wire.RejectInvalidGID, sameKind[:]},
		{"queue pair 0", func(m *wire.REQ) { m.LocalQP = 0 }, wire.RejectUnsupported, nil},
		{"queue pair 1", func(m *wire.REQ) { m.LocalQP = 1 }, wire.RejectUnsupported, nil},
		{"ID 0", func(m *wire.REQ) { m.LocalID = 0 }, wire.RejectUnsupported, nil},
		{"partition", func(m *wire.REQ) { m.PKey = 0x8001 }, wire.RejectUnsupported, nil},
		{"header version", func(m *wire.REQ) { m.Private[0] = 1 }, wire.RejectUnsupported, nil},
		{"IP version", func(m *wire.REQ) { m.Private[1] = 0x50 }, wire.RejectUnsupported, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t)
			req := s.req()
			c.change(req)
			for range 2 { // the Manager keeps no state
				s.deliver(s.peer, req)
				s.quiet()
				rej := received[*wire.REJ](s)
				if rej.TID != req.TID || rej.LocalID != 0 || rej.RemoteID != req.LocalID || rej.Answered != wire.AnsweredREQ ||
					rej.Reason != c.reason || !bytes.Equal(rej.ARI[:rej.ARILength], c.ari) || rej.Private != (wire.REJ{}).Private {
					t.Errorf("REJ %+v", rej)
				}
			}
			if got := s.m.Counters(); got.Refused != 2 || got.Connections != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The active end rejects an invalid REP and reports the reason to both
// consumers.
func TestRefusedREP(t *testing.T) {
	for name, change := range map[string]func(*wire.REP){
		"queue pair": func(m *wire.REP) { m.LocalQP = 1 },
		"ID":         func(m *wire.REP) { m.LocalID = 0 },
	} {
		s := newScript(t)
		s.asking()
		rep := s.rep()
		change(rep)
		s.deliver(s.peer, rep)
		if got := s.effects(); got != "REJ 5, rejected, time-wait" {
			t.Errorf("%s: %s", name, got)
		}
		s.deliver(s.peer, rep)
		if got := s.effects(); got != "REJ 5, time-wait" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A REQ with the ID of another connection is rejected: it has another
// transaction or another queue pair.
func TestDuplicateID(t *testing.T) {
	for name, change := range map[string]func(*script){
		"transaction": func(s *script) { s.tid++ },
		"queue pair":  func(s *script) { s.peerQP++ },
	} {
		s := newScript(t)
		s.establishedPassive()
		change(s)
		s.deliver(s.peer, s.req())
		if got := s.effects(); got != "REJ 30, established" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A peer that reuses the queue pair of a connection has lost its state: the
// Manager rejects the REQ and disconnects the connection. A viablk peer never
// does so: another host sent the REQ, and the connection stays.
func TestStaleConnection(t *testing.T) {
	for _, c := range []struct{ way, want string }{
		{"req-received", "REJ 10, req-received"},
		{"rep-sent", "REJ 10, rep-sent"},
		{"rep-received", "REJ 10, rep-received"},
		{"established, active", "REJ 10, suspected, established"},
		{"established, passive", "REJ 10, suspected, established"},
		{"dreq-sent, active", "REJ 10, dreq-sent"},
		{"disconnected", "REJ 10, time-wait"},
		{"rejected", "other requested, time-wait"},
		{"withdrawn", "other requested, time-wait"},
		{"released", "other requested, gone"},
	} {
		s := newScript(t)
		ways[c.way](s)
		s.peerID++
		s.deliver(s.peer, s.req())
		if got := s.effects(); got != c.want {
			t.Errorf("%s: %s, want %s", c.way, got, c.want)
		}
	}
	s := newScript(t)
	s.vendor, s.peer = cm.VendorID, s.foreign()
	s.establishedPassive()
	s.peerID++
	s.deliver(s.peer, s.req())
	if got := s.effects(); got != "REJ 10, established" {
		t.Errorf("own end: %s", got)
	}
}

// At the active end, the REP has the queue pair of another connection.
func TestStaleREP(t *testing.T) {
	s := newScript(t)
	s.established()
	old := s.id
	s.peerID++
	s.asking()
	s.deliver(s.peer, s.rep())
	if got := s.effects(); got != "REJ 10, DREQ, rejected, other disconnected, time-wait" {
		t.Error(got)
	}
	if got := s.m.State(old); got != "time-wait" {
		t.Error(got)
	}
}

// A peer that takes a duplicate REQ for a second one sends two REPs: the second
// is rejected.
func TestSecondREP(t *testing.T) {
	s := newScript(t)
	s.granted()
	s.peerID++
	s.deliver(s.peer, s.rep())
	if rej := received[*wire.REJ](s); rej.Reason != wire.RejectInvalidID || rej.RemoteID != s.peerID || rej.LocalID != uint32(s.id) {
		t.Errorf("%+v", rej)
	}
	if got := s.effects(); got != "rep-received" {
		t.Error(got)
	}
}

// A REJ 26 need not suggest a path MTU.
func TestREJWithoutMTU(t *testing.T) {
	for ari, want := range map[string]wire.MTU{"": 0, "\x00": 0, "\x09": 0, "\x02": wire.MTU512} {
		s := newScript(t)
		s.asking()
		rej := s.rej(wire.RejectInvalidMTU)
		rej.ARILength = uint8(copy(rej.ARI[:], ari))
		s.deliver(s.peer, rej)
		if e := s.event(cm.Rejected); e.MTU != want {
			t.Errorf("% x: %v", ari, e.MTU)
		}
	}
}

func TestListen(t *testing.T) {
	s := newScript(t)
	if s.m.Listen(service) || !s.m.Listen(service+1) {
		t.Error("a service is taken once")
	}
	s.requested()
	s.m.Unlisten(service)
	if err := s.m.Accept(s.id, answer, s.now); err != nil {
		t.Error(err)
	}
	s.peerID, s.peerQP = s.peerID+1, s.peerQP+1
	s.deliver(s.peer, s.req())
	if got := s.effects(); got != "REP, REJ 8, rep-sent" {
		t.Error(got)
	}
}

// Calls that do not fit the state fail or have no effect.
func TestCallsInOtherStates(t *testing.T) {
	accepts := "req-received"
	establishes := "rep-sent rep-received established, active established, passive"
	rejects := "req-received rep-received"
	for way, enter := range ways {
		for name, c := range map[string]struct {
			in   string
			call func(*script) error
		}{
			"accept":    {accepts, func(s *script) error { return s.m.Accept(s.id, answer, s.now) }},
			"establish": {establishes, func(s *script) error { return s.m.Establish(s.id, s.now) }},
		} {
			s := newScript(t)
			enter(s)
			err := c.call(s)
			if ok := strings.Contains(c.in, way); (err == nil) != ok {
				t.Errorf("%s, %s: %v", way, name, err)
			}
		}
		s := newScript(t)
		enter(s)
		before := s.m.State(s.id)
		if err := s.m.Reject(s.id, &cm.Refusal{}, s.now); err != nil {
			t.Error(err)
		}
		if got := s.m.State(s.id); (got == before) == strings.Contains(rejects, way) {
			t.Errorf("%s, rejected: %s", way, got)
		}
		s = newScript(t)
		enter(s)
		s.m.Abandon(s.id, s.now)
		s.m.Abandon(s.id, s.now)
		s.m.Disconnect(s.id, s.now)
		s.effects()
		s.wait(3 * time.Second)
		want := "released, gone"
		if way == "released" {
			want = "gone"
		}
		if got := s.effects(); got != want {
			t.Errorf("%s, abandoned: %s", way, got)
		}
	}
}
