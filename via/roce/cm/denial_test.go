package cm_test

import (
	"net/netip"
	"testing"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// established connects two Managers whose ends state tags.
func established(t *testing.T) (a, b *box, ofA, ofB cm.ID) {
	t.Helper()
	a, b = pair(t)
	r := a.request(b)
	r.End.Tag = tagOfA
	ofA, err := a.m.Connect(r, a.now)
	if err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	ofB = b.event(cm.Requested).ID
	reply := *answer
	reply.End.Tag = tagOfB
	if err := b.m.Accept(ofB, &reply, b.now); err != nil {
		t.Fatal(err)
	}
	a.carry(b)
	a.event(cm.Granted)
	if err := a.m.Establish(ofA, a.now); err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	b.event(cm.Established)
	return a, b, ofA, ofB
}

// Tags that packets to the ends carry.
const tagOfA, tagOfB = 0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00

// TestDenial: a peer that has started anew denies the queue pair of a packet,
// and either end believes it: the denial quotes the tag of the packet.
func TestDenial(t *testing.T) {
	for _, active := range []bool{true, false} {
		a, b, id, _ := established(t)
		qp, tag := answer.End.QP, uint64(tagOfB)
		if !active {
			a, b, _, id = established(t)
			a, b = b, a
			qp, tag = a.peerQP(b), tagOfA
		}
		anew := newBox(t, b.addr.String(), nil)
		anew.m.Deny(a.addr, qp, tag)
		if a.carry(anew) != 1 {
			t.Error("a denial is one message")
		}
		if e := a.event(cm.Disconnected); e.ID != id || e.Reason != wire.RejectStale {
			t.Errorf("the event is %+v", e)
		}
		anew.m.Deny(a.addr, qp, tag) // the answer to another packet
		a.carry(anew)
		a.quiet()
	}
}

// peerQP returns the queue pair that the request of the other end states.
func (b *box) peerQP(of *box) uint32 { return of.request(b).End.QP }

// TestFalseDenial: no other host can deny a connection, and no host one that it
// does not see packets of.
func TestFalseDenial(t *testing.T) {
	a, b, _, _ := established(t)
	other := newBox(t, "10.0.0.66:4791", nil)
	at := newBox(t, netip.AddrPortFrom(b.addr.Addr(), 5000).String(), nil)
	for name, f := range map[string]struct {
		from *box
		qp   uint32
		tag  uint64
	}{
		"another host":       {other, answer.End.QP, tagOfB},
		"another port":       {at, answer.End.QP, tagOfB},
		"another queue pair": {b, answer.End.QP + 1, tagOfB},
		"the wrong tag":      {b, answer.End.QP, tagOfB + 1},
		"the other tag":      {b, answer.End.QP, tagOfA},
		"no tag":             {b, answer.End.QP, 0},
	} {
		f.from.m.Deny(a.addr, f.qp, f.tag)
		a.carry(f.from)
		var e cm.Event
		if a.m.Poll(&e) {
			t.Errorf("%s: event %v", name, e.Kind)
		}
	}
	for name, private := range map[string][]byte{"no mark": make([]byte, 12), "too short": []byte("vbk\x0b"), "too long": []byte("vbk\x0d"), "nothing": nil} {
		rej := &wire.REJ{Answered: wire.AnsweredOther, Reason: wire.RejectStale}
		copy(rej.Private[:], private)
		before := a.m.Counters().Malformed
		deliver(a, b.addr, rej)
		if a.quiet(); a.m.Counters().Malformed != before+1 {
			t.Errorf("%s: not counted", name)
		}
	}
	b.m.Deny(a.addr, answer.End.QP, tagOfB)
	a.carry(b)
	a.event(cm.Disconnected)
}

// TestDenialAmidHandshake: until a connection is established, its own messages
// decide.
func TestDenialAmidHandshake(t *testing.T) {
	a, b := pair(t)
	r := a.request(b)
	r.End.Tag = tagOfA
	if _, err := a.m.Connect(r, a.now); err != nil {
		t.Fatal(err)
	}
	b.carry(a)
	b.event(cm.Requested)
	a.m.Deny(b.addr, r.End.QP, tagOfA)
	b.carry(a)
	b.quiet()
}

// deliver passes a message to a Manager.
func deliver(b *box, from netip.AddrPort, m wire.Message) {
	b.t.Helper()
	var mad [wire.MADSize]byte
	m.Encode(mad[:])
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}, Payload: mad[:],
	}
	b.m.Receive(from, &p, b.now)
}
