package cm_test

import (
	"testing"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// An end that knows no tags states 0, and gets 0.
func TestTags(t *testing.T) {
	const active, passive = 0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00
	for name, c := range map[string]struct {
		active, passive           uint64
		wantOfActive, wantOfReply uint64
	}{
		"both":         {active, passive, active, passive},
		"passive only": {0, passive, 0, 0},
		"active only":  {active, 0, active, 0},
		"none":         {},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			r := a.request(b)
			r.End.Tag = c.active
			id, err := a.m.Connect(r, a.now)
			if err != nil {
				t.Fatal(err)
			}
			b.carry(a)
			e := b.event(cm.Requested)
			if e.Peer.Tag != c.wantOfActive {
				t.Errorf("the request states %#x", e.Peer.Tag)
			}
			reply := *answer
			reply.End.Tag = c.passive
			if err := b.m.Accept(e.ID, &reply, b.now); err != nil {
				t.Fatal(err)
			}
			a.carry(b)
			g := a.event(cm.Granted)
			if g.ID != id || g.Peer.Tag != c.wantOfReply || string(g.Private) != "welcome" {
				t.Errorf("the reply states %#x, %q", g.Peer.Tag, g.Private)
			}
		})
	}
}

// An end of another implementation is sent no tag, and what is in the place of
// one in its messages is none.
func TestNoTagForAnotherKind(t *testing.T) {
	s := newScript(t)
	req := s.req()
	req.Tag = 1
	s.deliver(s.peer, req)
	if e := s.event(cm.Requested); e.Peer.Tag != 0 {
		t.Errorf("the request states %#x", e.Peer.Tag)
	} else {
		s.id = e.ID
	}
	reply := *answer
	reply.End.Tag = 0x99aa_bbcc_ddee_ff00
	if err := s.m.Accept(s.id, &reply, s.now); err != nil {
		t.Fatal(err)
	}
	var d cm.Datagram
	var p wire.Packet
	var rep wire.REP
	if !s.m.Emit(&d) || p.Decode(append(d.Bytes[:], 0, 0, 0, 0), wire.DefaultPKey) != wire.Accepted || rep.Decode(p.Payload) != wire.Accepted {
		t.Fatal("no REP")
	}
	if n := len(rep.Private); wire.Tag(rep.Private[n-wire.TagSize:]) != 0 {
		t.Error("the REP states a tag")
	}
}
