package cm_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// Flags of an input of FuzzPrivate.
const (
	privateOurs   = 1  // the peer is a viablk end
	privateFull   = 2  // a REQ needs a cookie
	privateCookie = 4  // and has it
	privateIP     = 8  // the service is of the TCP port space
	privateHeader = 16 // whose header is the input's too
	privateAnswer = 32 // a REJ answers a REQ
)

// FuzzPrivate gives each message any private data, from a peer of either kind.
// The consumer gets what the peer's consumer sent, without mark, padding,
// header and cookie; or there is no event.
func FuzzPrivate(f *testing.F) {
	cookie := append([]byte("\xc0vb\xe5"), bytes.Repeat([]byte{7}, wire.CookieCode)...)
	for kind := range byte(len(privateKinds)) {
		for _, flags := range []byte{0, 1, 2, 3, 6, 7, 8, 10, 11, 14, 15, 24, 32, 33} {
			for _, data := range [][]byte{
				nil, []byte("hello"), []byte("vbk\x05hello"), []byte("vbk\xffhello"), append([]byte("vbk\x14"), cookie...), cookie,
				append(make([]byte, wire.UserSize-len(cookie)), cookie...), bytes.Repeat([]byte{'x'}, 255), append([]byte("vbk\xbf"), bytes.Repeat([]byte{'x'}, 250)...),
				{0, 0x40},
				{0, 0x60},
				{1, 0x40},
			} {
				f.Add(kind, flags, uint16(wire.RejectNoResources), data)
				f.Add(kind, flags, uint16(wire.RejectConsumer), data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, kind, flags byte, code uint16, data []byte) {
		p := &private{script: newScript(t), flags: flags, code: code, data: data}
		if p.has(privateOurs) {
			p.vendor = cm.VendorID
		}
		privateKinds[int(kind)%len(privateKinds)](p)
		p.quiet()
	})
}

// privateKinds handle an input, by the message that has the data.
var privateKinds = []func(p *private){
	(*private).ofREQ, (*private).ofREP, (*private).ofREJ, (*private).ofLateREJ, (*private).ofDREQ, (*private).ofOthers,
}

// private is an input of FuzzPrivate.
type private struct {
	*script
	flags byte
	code  uint16
	data  []byte
}

func (p *private) has(flag byte) bool { return p.flags&flag != 0 }

// unmark returns the data of a field, and whether it is that of a viablk end.
func unmark(field []byte) (data []byte, ours bool) {
	if data, ours = bytes.CutPrefix(field, []byte("vbk")); !ours || int(data[0]) > len(data)-1 {
		return field, false
	}
	return data[1 : 1+int(data[0])], true
}

// gets polls an event and compares its data.
func (p *private) gets(kind cm.Kind, want []byte) cm.Event {
	p.t.Helper()
	e := p.event(kind)
	if !bytes.Equal(e.Private, want) {
		p.t.Fatalf("%v has %q, want %q", kind, e.Private, want)
	}
	return e
}

// ofREQ sends a request. If it needs a cookie and has none, it gets one.
func (p *private) ofREQ() {
	const otherService = wire.ServiceID(0x1234)
	p.m.Listen(otherService)
	vendor := p.vendor
	if p.has(privateFull) {
		p.vendor = 0
		p.crowd()
		p.vendor = vendor
	}
	req := p.req()
	user, valid := req.Private[wire.CMASize:], true
	if !p.has(privateIP) || p.has(privateHeader) {
		user = req.Private[:]
	}
	clear(user)
	copy(user, p.data)
	if !p.has(privateIP) {
		req.ServiceID = otherService
	} else {
		version := req.Private[1] >> 4
		valid = req.Private[0] == 0 && (version == 4 || version == 6)
		user = req.Private[wire.CMASize:]
	}
	want := bytes.Clone(user)
	before := p.m.Counters().Pending
	if valid && p.has(privateFull) && p.has(privateCookie) {
		wire.PutCookie(user, p.asked(req))
		clear(want[len(want)-wire.CookieSize:])
	}
	p.deliver(p.peer, req)
	switch {
	case !valid:
		p.refused(wire.RejectUnsupported)
	case p.has(privateFull) && !p.has(privateCookie):
		p.refused(wire.RejectNoResources)
	default:
		before++
		p.gets(cm.Requested, want)
		p.silent()
	}
	if n := p.m.Counters().Pending; n != before {
		p.t.Fatalf("%d requests are pending, want %d", n, before)
	}
}

// asked sends a request and returns the cookie that the Manager asks for.
func (p *private) asked(req *wire.REQ) []byte {
	p.t.Helper()
	p.deliver(p.peer, req)
	p.quiet()
	data, ours := unmark(p.refused(wire.RejectNoResources).Private[:])
	cookie := wire.Cookie(data[:wire.CookieSize])
	if cookie == nil || ours != p.has(privateOurs) {
		p.t.Fatalf("no cookie in %q", data)
	}
	return cookie
}

// refused returns the REJ of the request.
func (p *private) refused(reason wire.Reason) *wire.REJ {
	p.t.Helper()
	rej := received[*wire.REJ](p.script)
	if rej.Reason != reason || rej.TID != p.tid || rej.RemoteID != p.peerID {
		p.t.Fatalf("%+v", rej)
	}
	p.silent()
	return rej
}

// ofREP accepts a request of the Manager.
func (p *private) ofREP() {
	p.asking()
	rep := p.rep()
	rep.LocalEECN = uint32(p.code)
	copy(rep.Private[:], p.data)
	data, ours := unmark(rep.Private[:])
	p.deliver(p.foreign(), rep)
	e := p.gets(cm.Granted, data)
	room, tag := uint32(0), uint64(0)
	if ours {
		room = rep.LocalEECN
		if len(data) <= len(rep.Private)-cm.MarkSize-wire.TagSize {
			tag = wire.Tag(rep.Private[len(rep.Private)-wire.TagSize:])
		}
	}
	if e.SameKind != ours || e.Peer.Room != room || e.Peer.Tag != tag {
		p.t.Fatalf("%+v", e)
	}
	p.silent()
}

// ofREJ rejects a request of the Manager, or asks for a cookie.
func (p *private) ofREJ() {
	r := p.request(&box{addr: p.foreign()})
	r.Private = bytes.Repeat([]byte{'x'}, int(p.flags>>2)%(wire.UserSize+1))
	id, err := p.m.Connect(r, p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	req := received[*wire.REQ](p.script)
	p.id, p.tid = id, req.TID
	rej := p.rej(wire.Reason(p.code))
	rej.LocalID = 0
	copy(rej.Private[:], p.data)
	data, _ := unmark(rej.Private[:])
	end := req.Private[len(req.Private)-wire.CookieSize:]
	hasRoom := len(r.Private) <= wire.UserSize-wire.CookieSize
	asks := rej.Reason == wire.RejectNoResources && len(data) >= wire.CookieSize && bytes.HasPrefix(data, []byte("\xc0vb\xe5")) && hasRoom
	p.deliver(p.foreign(), rej)
	if !asks {
		if e := p.gets(cm.Rejected, data); e.Reason != rej.Reason {
			p.t.Fatalf("%+v", e)
		}
		if rej.Reason != wire.RejectStale {
			p.event(cm.Released)
		}
		p.silent()
		return
	}
	copy(end, data)
	if again := received[*wire.REQ](p.script); *again != *req {
		p.t.Fatalf("%+v, want %+v", again, req)
	}
	p.silent()
}

// ofLateREJ ends a request of the peer, which has its answer or waits for it.
func (p *private) ofLateREJ() {
	if p.requested(); p.has(privateAnswer) {
		a := *answer
		a.End.QP = p.qp
		if err := p.m.Accept(p.id, &a, p.now); err != nil {
			p.t.Fatal(err)
		}
		received[*wire.REP](p.script)
	}
	rej := p.rej(wire.Reason(p.code))
	copy(rej.Private[:], p.data)
	data, ours := unmark(rej.Private[:])
	if p.has(privateOurs) && !ours {
		data = nil
	}
	p.deliver(p.peer, rej)
	p.gets(cm.Rejected, data)
	p.silent()
}

// ofDREQ ends a connection of the peer's.
func (p *private) ofDREQ() {
	p.establishedPassive()
	dreq := p.dreq()
	copy(dreq.Private[:], p.data)
	data, ours := unmark(dreq.Private[:])
	if !p.has(privateOurs) || !ours {
		data = nil
	}
	p.deliver(p.peer, dreq)
	p.gets(cm.Disconnected, data)
	received[*wire.DREP](p.script)
	p.silent()
}

// ofOthers sends messages whose private data has no meaning.
func (p *private) ofOthers() {
	p.answered()
	mra, rtu, drep := p.mra(wire.AnsweredREP), p.rtu(), p.drep()
	copy(mra.Private[:], p.data)
	copy(rtu.Private[:], p.data)
	p.deliver(p.peer, mra)
	p.quiet()
	p.deliver(p.peer, rtu)
	p.gets(cm.Established, nil)
	p.m.Disconnect(p.id, p.now)
	drep.TID = received[*wire.DREQ](p.script).TID
	copy(drep.Private[:], p.data)
	p.deliver(p.peer, drep)
	p.gets(cm.Disconnected, nil)
	p.silent()
}
