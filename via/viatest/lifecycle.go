package viatest

import (
	"github.com/viablk/viablk/via"
)

var lifecycleCases = []kitCase{
	{"DestroyVI", EarlyAdopter, "a VI is destroyed idle and empty, once", anyLevel, 0, destroyVI},
	{"DestroyUntaken", EarlyAdopter, "a VI whose completions were not dequeued is not empty", anyLevel, 0, destroyUntaken},
	{"DestroyCQ", EarlyAdopter, "a completion queue is destroyed when no VI is bound to it, once", anyLevel, 0, destroyCQ},
	{"DestroyPtag", Functional, "a tag is destroyed when nothing carries it, once", anyLevel, 0, destroyPtag},
	{"CloseNIC", EarlyAdopter, "a NIC closes when nothing is left on it, once", anyLevel, 0, closeNIC},
	{"ClosedNIC", EarlyAdopter, "a closed NIC refuses everything as an invalid parameter", anyLevel, 0, closedNIC},
	{"ForeignObjects", EarlyAdopter, "objects of another NIC are refused", anyLevel, 0, foreignObjects},
	{"DestroyedObjects", EarlyAdopter, "destroyed objects are refused, and harmless", anyLevel, 0, destroyedObjects},
	{"CreateViRefusals", EarlyAdopter, "a VI needs attributes and depths that the NIC has", anyLevel, 0, createViRefusals},
	{"CreateCQRefusals", EarlyAdopter, "a completion queue has at least one and not too many entries", anyLevel, 0, createCQRefusals},
	{"DescriptorBounds", EarlyAdopter, "a descriptor lies in one region, whole", anyLevel, 0, descriptorBounds},
}

func destroyVI(e *env) {
	e.connect()
	first := [2]*via.VI{e.client.vi, e.server.vi}
	e.wants(first[0].Destroy(), via.ErrResource, "destroy a connected vi")
	e.check(first[0].Disconnect(), "disconnect")
	e.breaks(e.server)
	e.wants(first[1].Destroy(), via.ErrResource, "destroy a broken vi")
	e.check(first[1].Disconnect(), "disconnect")
	x := e.client
	vi, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 4, RecvDepth: 4})
	e.check(err, "create vi")
	r := x.postRecv(vi, build(x.desc(0), via.OpRecv, nil, nil))
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi with a posted receive")
	e.check(vi.Disconnect(), "disconnect")
	e.flushed(x, r)
	if send, recv := vi.QueuesEmpty(); !send || !recv {
		e.t.Errorf("queues are not empty after a flush")
	}
	e.check(vi.Destroy(), "destroy")
	e.wants(vi.Destroy(), via.ErrInvalidParameter, "destroy again")
}

func destroyUntaken(e *env) {
	x := e.client
	vi, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 4, RecvDepth: 4})
	e.check(err, "create vi")
	r := x.postRecv(vi, build(x.desc(0), via.OpRecv, nil, nil))
	e.check(vi.Disconnect(), "disconnect")
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi with a completion to take")
	e.flushed(x, r)
	e.check(vi.Destroy(), "destroy")
}

func destroyCQ(e *env) {
	x := e.client
	cq, err := x.nic.CreateCQ(16)
	e.check(err, "create completion queue")
	for _, cfg := range []via.ViConfig{{SendCQ: cq, RecvCQ: x.cq}, {SendCQ: x.cq, RecvCQ: cq}, {SendCQ: cq, RecvCQ: cq}} {
		cfg.SendDepth, cfg.RecvDepth = 1, 1
		vi, err := x.nic.CreateVi(x.attributes(), cfg)
		e.check(err, "create vi")
		e.wants(cq.Destroy(), via.ErrResource, "destroy a queue in use")
		e.check(vi.Destroy(), "destroy vi")
	}
	e.check(cq.Destroy(), "destroy completion queue")
	e.wants(cq.Destroy(), via.ErrInvalidParameter, "destroy again")
}

func destroyPtag(e *env) {
	x := e.client
	tag, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	if tag == x.tag || tag.ID() == x.tag.ID() {
		e.t.Errorf("two live tags are the same")
	}
	attrs := x.attributes()
	attrs.Ptag = tag
	vi, err := x.nic.CreateVi(attrs, via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	e.wants(x.nic.DestroyPtag(tag), via.ErrResource, "destroy a vi's tag")
	e.check(vi.Destroy(), "destroy vi")
	m := e.region(x, x.buffer(8), via.MemAttributes{Ptag: tag})
	e.wants(x.nic.DestroyPtag(tag), via.ErrResource, "destroy a region's tag")
	e.check(m.Deregister(), "deregister")
	e.check(x.nic.DestroyPtag(tag), "destroy tag")
	e.wants(x.nic.DestroyPtag(tag), via.ErrInvalidPtag, "destroy again")
	e.wants(x.nic.DestroyPtag(via.Ptag{}), via.ErrInvalidPtag, "destroy the zero tag")
}

func closeNIC(e *env) {
	x := e.client
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	e.wants(x.nic.Close(), via.ErrResource, "close a nic in use")
	// Refusing to close leaves everything as it was.
	e.connect()
	r := e.server.recv()
	e.ok(e.client, e.client.send())
	e.ok(e.server, r)
	l, err := e.server.nic.Listen(e.service())
	e.check(err, "listen")
	e.wants(e.server.nic.Close(), via.ErrResource, "close a nic that listens")
	e.check(l.Close(), "close listener")
	e.check(cq.Destroy(), "destroy completion queue")
	x.close()
	e.wants(x.nic.Close(), via.ErrInvalidParameter, "close again")
}

func closedNIC(e *env) {
	x := e.client
	addr := e.service()
	x.close()
	_, err := x.nic.CreatePtag()
	e.wants(err, via.ErrInvalidParameter, "create tag")
	_, err = x.nic.NewArena(4096)
	e.wants(err, via.ErrInvalidParameter, "map an arena")
	_, err = x.nic.RegisterMem(make([]byte, 8), via.MemAttributes{})
	e.wants(err, via.ErrInvalidParameter, "register")
	_, err = x.nic.CreateCQ(4)
	e.wants(err, via.ErrInvalidParameter, "create completion queue")
	_, err = x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1})
	e.wants(err, via.ErrInvalidParameter, "create vi")
	_, err = x.nic.Listen(addr)
	e.wants(err, via.ErrInvalidParameter, "listen")
	e.wants(x.arena.Close(), via.ErrInvalidParameter, "unmap an arena")
	e.wants(x.data.Deregister(), via.ErrInvalidParameter, "deregister")
	if x.nic.LookupMemory(1) != nil || x.nic.Name() == "" || x.nic.Limits().MaxSegmentsPerDesc == 0 {
		e.t.Errorf("a closed nic forgets its name or limits")
	}
}

func foreignObjects(e *env) {
	e.connect()
	x, y := e.client, e.server
	create := func(a via.ViAttributes, cfg via.ViConfig) error {
		cfg.SendDepth, cfg.RecvDepth = 1, 1
		_, err := x.nic.CreateVi(a, cfg)
		return err
	}
	foreign := x.attributes()
	foreign.Ptag = y.tag
	e.wants(create(foreign, via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq}), via.ErrInvalidPtag, "create vi with a foreign tag")
	e.wants(create(x.attributes(), via.ViConfig{SendCQ: y.cq, RecvCQ: x.cq}), via.ErrInvalidParameter, "create vi on a foreign queue")
	e.wants(create(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: y.cq}), via.ErrInvalidParameter, "create vi on a foreign queue")
	e.wants(x.nic.DestroyPtag(y.tag), via.ErrInvalidPtag, "destroy a foreign tag")
	e.wants(x.data.SetAttributes(via.MemAttributes{Ptag: y.tag}), via.ErrInvalidPtag, "move to a foreign tag")
	d := build(y.desc(0), via.OpSend, nil, nil)
	e.wants(x.vi.PostSend(d), via.ErrInvalidParameter, "post a foreign descriptor")
	e.wants(x.vi.PostSend(nil), via.ErrInvalidParameter, "post nil")
	e.wants(x.vi.PostRecv(&via.Descriptor{}), via.ErrInvalidParameter, "post the zero descriptor")
}

func destroyedObjects(e *env) {
	x := e.client
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	vi, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	e.check(vi.Destroy(), "destroy vi")
	e.check(cq.Destroy(), "destroy completion queue")
	d := build(x.desc(0), via.OpSend, nil, nil)
	e.wants(vi.PostSend(d), via.ErrInvalidParameter, "post to a destroyed vi")
	e.wants(vi.PostRecv(d), via.ErrInvalidParameter, "post to a destroyed vi")
	_, err = vi.Connect(e.timeout(), e.service())
	e.wants(err, via.ErrInvalidParameter, "connect a destroyed vi")
	e.wants(vi.Disconnect(), via.ErrInvalidParameter, "disconnect a destroyed vi")
	vi.Doorbell()
	if n := cq.Poll(x.batch[:]); n != 0 {
		e.t.Errorf("a destroyed queue returns %d completions", n)
	}
	_, err = x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1})
	e.wants(err, via.ErrInvalidParameter, "create vi on a destroyed queue")
	e.idle()
	dial, r := e.asked(e.listen(e.service()))
	gone := e.server.newVI(e.server.attributes())
	e.server.vis = e.server.vis[:len(e.server.vis)-1]
	e.check(gone.Destroy(), "destroy vi")
	e.wants(r.Accept(e.timeout(), gone), via.ErrInvalidParameter, "accept with a destroyed vi")
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
}

func createViRefusals(e *env) {
	x := e.client
	l := x.nic.Limits()
	good := via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1}
	refuse := func(code error, doing string, change func(a *via.ViAttributes, cfg *via.ViConfig)) {
		a, cfg := x.attributes(), good
		change(&a, &cfg)
		_, err := x.nic.CreateVi(a, cfg)
		e.wants(err, code, doing)
	}
	for _, level := range []via.ReliabilityLevel{0, 3, 6, 8} {
		refuse(via.ErrInvalidReliability, "no level", func(a *via.ViAttributes, _ *via.ViConfig) { a.Reliability = level })
	}
	for _, level := range []via.ReliabilityLevel{via.UnreliableDelivery, via.ReliableReception} {
		if l.ReliabilityLevels&level == 0 {
			refuse(via.ErrInvalidReliability, "a level that the nic has not", func(a *via.ViAttributes, _ *via.ViConfig) { a.Reliability = level })
		}
	}
	if l.MaxTransferSize != ^uint32(0) {
		refuse(via.ErrInvalidMTU, "transfer size", func(a *via.ViAttributes, _ *via.ViConfig) { a.MaxTransferSize = l.MaxTransferSize + 1 })
	}
	refuse(via.ErrInvalidPtag, "zero tag", func(a *via.ViAttributes, _ *via.ViConfig) { a.Ptag = via.Ptag{} })
	for _, depth := range []int{-1, 0, l.MaxDescriptorsPerQueue + 1} {
		refuse(via.ErrInvalidParameter, "send depth", func(_ *via.ViAttributes, c *via.ViConfig) { c.SendDepth = depth })
		refuse(via.ErrInvalidParameter, "receive depth", func(_ *via.ViAttributes, c *via.ViConfig) { c.RecvDepth = depth })
	}
	a := x.attributes()
	a.MaxTransferSize = 0
	if got := x.newVI(a).Attributes().MaxTransferSize; got != l.MaxTransferSize {
		e.t.Errorf("no transfer size became %d, want the nic's %d", got, l.MaxTransferSize)
	}
}

func createCQRefusals(e *env) {
	for _, entries := range []int{-1, 0, e.client.nic.Limits().MaxCQEntries + 1} {
		_, err := e.client.nic.CreateCQ(entries)
		e.wants(err, via.ErrInvalidParameter, "create completion queue")
	}
}

func descriptorBounds(e *env) {
	m := e.client.descs
	end := len(m.Bytes())
	for _, r := range [][2]int{{-64, 64}, {end, 64}, {end - 32, 64}, {0, end + 1}, {0, 31}, {0, 0}, {0, -64}, {1 << 62, 64}} {
		_, err := m.NewDescriptor(r[0], r[1])
		e.wants(err, via.ErrInvalidParameter, "make descriptor")
	}
	d, err := m.NewDescriptor(end-64, 64)
	e.check(err, "make the last descriptor")
	d.Reset(via.OpSend)
	b := e.client.buffer(8)
	segments := 0
	for segments < 4 && d.AddSegment(b.addr(), b.mem.Handle(), 8) {
		segments++
	}
	if segments != 2 {
		e.t.Errorf("a descriptor of 64 bytes has room for %d segments, want 2", segments)
	}
}
