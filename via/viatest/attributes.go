package viatest

import (
	"github.com/viablk/viablk/via"
)

var attributesCases = []kitCase{
	{"SetAttributesNeedsIdle", Functional, "the attributes of a VI change while it is idle only", anyLevel, 0, setAttributesNeedsIdle},
	{"SetAttributesCounts", Functional, "changed attributes are those that a connection is made with", anyLevel, 0, setAttributesCounts},
	{"SetAttributesRetags", Functional, "a VI of another tag uses that tag's memory, and no other's", anyLevel, 0, setAttributesRetags},
	{"SetAttributesRefusals", Functional, "attributes that a VI cannot have are refused and leave it as it was", anyLevel, 0, setAttributesRefusals},
	{"SetAttributesOfReceives", Functional, "receives that wait are checked by the tag that their connection has", anyLevel, 0, setAttributesOfReceives},
	{"QueryVi", Functional, "a VI tells its state, its attributes and whether its queues are empty", anyLevel, 0, queryVi},
}

func setAttributesNeedsIdle(e *env) {
	e.idle()
	attrs := e.client.attributes()
	refused := func(doing string) {
		e.t.Helper()
		e.wants(e.client.vi.SetAttributes(attrs), via.ErrInvalidState, "set attributes while "+doing)
	}
	a, b := e.pair()
	e.check(e.client.vi.SetAttributes(attrs), "set attributes while idle")
	e.check(e.client.vi.PeerRequest(a, b, via.Infinite), "request a peer")
	refused("pending")
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.join(e.client.vi, e.server.vi)
	refused("connected")
	e.check(e.server.vi.Disconnect(), "disconnect")
	e.breaks(e.client)
	refused("broken")
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.check(e.client.vi.SetAttributes(attrs), "set attributes while idle again")
	gone, err := e.client.nic.CreateVi(attrs, via.ViConfig{SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	e.check(gone.Destroy(), "destroy vi")
	e.wants(gone.SetAttributes(attrs), via.ErrInvalidParameter, "set attributes of a destroyed vi")
}

func setAttributesCounts(e *env) {
	e.idle()
	l := e.listen(e.service())
	other := e.client.small(4096)
	other.QoS = 3
	e.check(e.client.vi.SetAttributes(other), "set attributes")
	dial, r := e.asked(l)
	if got := r.Attributes(); got.QoS != 3 || got.MaxTransferSize != 4096 {
		e.t.Errorf("the request carries %+v", got)
	}
	e.wants(r.Accept(e.timeout(), e.server.vi), via.ErrInvalidMTU, "accept with other attributes")
	other = e.server.small(4096)
	other.QoS = 3
	e.check(e.server.vi.SetAttributes(other), "set attributes")
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.passes(e.client, e.server)
	d := e.client.send(e.client.buffer(4097))
	e.fails(e.client, d, via.StatusLengthError)
	e.costs()
}

func setAttributesRetags(e *env) {
	e.idle()
	x := e.client
	tag, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	b := x.buffer(64)
	fill(b.b, 4)
	theirs := e.region(x, b, via.MemAttributes{Ptag: tag})
	d, m := e.elsewhere(x, tag)
	attrs := x.attributes()
	attrs.Ptag = tag
	e.check(x.vi.SetAttributes(attrs), "move the vi to another tag")
	if got := x.vi.Attributes(); got.Ptag != tag {
		e.t.Errorf("the vi's attributes are %+v", got)
	}
	e.wants(x.nic.DestroyPtag(tag), via.ErrResource, "destroy the tag of a vi")
	e.join(x.vi, e.server.vi)
	room := e.server.buffer(64)
	r := e.server.recv(room)
	b.mem, b.off = theirs, 0
	e.ok(x, x.postSend(x.vi, build(d, via.OpSend, nil, []buf{b})))
	e.ok(e.server, r)
	e.same(room.b, pattern(64, 4), "message from memory of the new tag")
	old := build(x.desc(0), via.OpSend, nil, nil)
	e.badPost(x, old, false, via.ErrInvalidParameter, via.AsyncPostDescriptor)
	for _, y := range []*end{x, e.server} {
		e.check(y.vi.Disconnect(), "disconnect")
	}
	e.check(x.vi.SetAttributes(x.attributes()), "move the vi back")
	e.check(theirs.Deregister(), "deregister")
	e.check(m.Deregister(), "deregister")
	e.check(x.nic.DestroyPtag(tag), "destroy the tag that nothing carries")
	e.join(x.vi, e.server.vi)
	e.passes(x, e.server)
}

func setAttributesRefusals(e *env) {
	e.idle()
	x := e.client
	l := x.nic.Limits()
	before := x.vi.Attributes()
	dead, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	e.check(x.nic.DestroyPtag(dead), "destroy tag")
	refuse := func(code error, doing string, change func(a *via.ViAttributes)) {
		e.t.Helper()
		a := x.attributes()
		change(&a)
		e.wants(x.vi.SetAttributes(a), code, doing)
		if got := x.vi.Attributes(); got != before {
			e.t.Errorf("%s: attributes are %+v, want %+v", doing, got, before)
		}
	}
	for _, level := range []via.ReliabilityLevel{0, 3, 7, 8} {
		refuse(via.ErrInvalidReliability, "no level", func(a *via.ViAttributes) { a.Reliability = level })
	}
	if l.MaxTransferSize != ^uint32(0) {
		refuse(via.ErrInvalidMTU, "too large transfers", func(a *via.ViAttributes) { a.MaxTransferSize = l.MaxTransferSize + 1 })
	}
	refuse(via.ErrInvalidPtag, "zero tag", func(a *via.ViAttributes) { a.Ptag = via.Ptag{} })
	refuse(via.ErrInvalidPtag, "tag of another nic", func(a *via.ViAttributes) { a.Ptag = e.server.tag })
	refuse(via.ErrInvalidPtag, "destroyed tag", func(a *via.ViAttributes) { a.Ptag = dead })
	if l.RdmaReadLevels&e.level == 0 {
		refuse(via.ErrInvalidRdmaRead, "rdma read where there is none", func(a *via.ViAttributes) { a.EnableRdmaRead = true })
	}
	e.join(e.client.vi, e.server.vi)
	e.passes(e.client, e.server)
}

func setAttributesOfReceives(e *env) {
	e.idle()
	x := e.client
	tag, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	r := x.recv(x.buffer(64)) // memory of the first tag
	attrs := x.attributes()
	attrs.Ptag = tag
	e.check(x.vi.SetAttributes(attrs), "move the vi to another tag")
	dial, request := e.asked(e.listen(e.service()))
	e.check(request.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.fails(x, r, via.StatusProtectionError)
	if e.unreliable() {
		e.state(x, via.StateConnected)
		e.state(e.server, via.StateConnected)
		return
	}
	e.breaks(x, e.server)
}

func queryVi(e *env) {
	e.idle()
	vi := e.client.vi
	if got := vi.Attributes(); got != e.client.attributes() || vi.NIC() != e.client.nic || vi.State() != via.StateIdle {
		e.t.Errorf("the vi is %v with %+v", vi.State(), got)
	}
	holds := func(send, recv bool, when string) {
		e.t.Helper()
		if s, r := vi.QueuesEmpty(); s == send || r == recv {
			e.t.Errorf("%s: send queue empty %v, receive queue empty %v", when, s, r)
		}
	}
	holds(false, false, "new")
	r := e.client.recv()
	holds(false, true, "with a receive")
	s := e.client.send()
	holds(true, true, "with a flushed send to take")
	e.flushed(e.client, s)
	holds(false, true, "with the send taken")
	e.check(vi.Disconnect(), "disconnect")
	holds(false, true, "with a flushed receive to take")
	e.flushed(e.client, r)
	holds(false, false, "with all taken")
}
