package viatest

import (
	"github.com/viablk/viablk/via"
)

var asyncCases = []kitCase{
	{"MessageTooLong", EarlyAdopter, "a message longer than its receive is a length error, and costs a reliable connection", anyLevel, 0, messageTooLong},
	{"PostMisaligned", Functional, "a descriptor off its alignment is refused, reported and costs a reliable connection", anyLevel, 0, postMisaligned},
	{"PostWithdrawn", Functional, "a descriptor in memory that is not registered is refused, reported and costs a reliable connection", anyLevel, 0, postWithdrawn},
	{"PostForeignTag", Functional, "a descriptor in memory of another tag is refused as one in no memory", anyLevel, 0, postForeignTag},
	{"SendOverrun", Functional, "one Send more than the queue holds is refused, reported and costs a reliable connection", anyLevel, 0, sendOverrun},
	{"ReceiveOverrun", Functional, "one receive more than the queue holds is refused, reported and costs a reliable connection", anyLevel, 0, receiveOverrun},
	{"IdleErrorIsRemembered", Functional, "an error met while idle is reported by the next connect", anyLevel, 0, idleErrorRemembered},
	{"QueueTooSmall", Functional, "a completion queue that overflows is reported as catastrophic, once", anyLevel, 0, queueTooSmall},
	{"HandlerMayPost", Functional, "an error handler may post; what it posts completes", anyLevel, 0, handlerMayPost},
	{"OtherConnectionsSurvive", Functional, "an error breaks its own connection only", reliable, 0, othersSurvive},
}

func messageTooLong(e *env) {
	e.connect()
	for _, room := range []int{0, 1, 99} {
		dst, canary := e.server.buffer(room), e.server.buffer(200)
		fill(canary.b, 8)
		r, next := e.server.recv(dst), e.server.recv(e.server.buffer(100))
		e.client.send(e.client.buffer(100))
		e.fails(e.server, r, via.StatusLengthError)
		e.costs()
		if !e.unreliable() {
			e.fails(e.server, next, via.StatusFlushed)
		}
		e.same(canary.b, pattern(200, 8), "memory behind the receive")
	}
}

// badPost posts a descriptor that the call itself refuses.
func (e *env) badPost(x *end, d *via.Descriptor, recv bool, code error, reason via.AsyncCode) {
	e.t.Helper()
	post := x.vi.PostSend
	if recv {
		post = x.vi.PostRecv
	}
	e.wants(post(d), code, "post")
	n := 0
	for _, a := range x.errors() {
		if a.Code == reason && a.VI == x.vi && a.Descriptor == d {
			n++
		}
	}
	if got := x.count(reason); n != 1 || got != 1 {
		e.t.Errorf("%d callbacks %v, %d with vi and descriptor; want one", got, reason, n)
	}
	if !e.unreliable() {
		e.raised(e.server, via.AsyncConnectionLost)
	}
}

func postMisaligned(e *env) {
	e.connect()
	for _, off := range []int{8, 32} {
		for _, recv := range []bool{false, true} {
			d, err := e.client.descs.NewDescriptor(e.client.dused+off, 64)
			e.check(err, "make descriptor")
			e.client.dused += 128
			build(d, via.OpSend, nil, nil)
			e.badPost(e.client, d, recv, via.ErrInvalidParameter, via.AsyncPostDescriptor)
			e.costs()
		}
	}
}

// elsewhere returns a descriptor in a region of its own.
func (e *env) elsewhere(x *end, tag via.Ptag) (*via.Descriptor, *via.Memory) {
	e.t.Helper()
	a, err := x.nic.NewArena(4096)
	e.check(err, "map an arena")
	m, err := x.nic.RegisterMem(a.Bytes(), via.MemAttributes{Ptag: tag})
	e.check(err, "register it")
	e.t.Cleanup(func() { _ = m.Deregister() }) // may be done
	d, err := m.NewDescriptor(64, 128)
	e.check(err, "make descriptor")
	return d, m
}

func postWithdrawn(e *env) {
	e.connect()
	d, m := e.elsewhere(e.client, e.client.tag)
	build(d, via.OpSend, nil, nil)
	e.check(m.Deregister(), "deregister")
	e.badPost(e.client, d, false, via.ErrInvalidParameter, via.AsyncPostDescriptor)
	e.costs()
}

func postForeignTag(e *env) {
	e.connect()
	tag, err := e.client.nic.CreatePtag()
	e.check(err, "create tag")
	d, _ := e.elsewhere(e.client, tag)
	build(d, via.OpRecv, nil, nil)
	e.badPost(e.client, d, true, via.ErrInvalidParameter, via.AsyncPostDescriptor)
	e.costs()
}

// shallow connects VIs whose queues hold depth descriptors.
func (e *env) shallow(depth int) {
	e.t.Helper()
	for _, x := range []*end{e.client, e.server} {
		x.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: depth, RecvDepth: depth})
	}
	e.join(e.client.vi, e.server.vi)
}

func sendOverrun(e *env) {
	const depth = 5
	e.shallow(depth)
	for range depth {
		e.server.recv()
	}
	for range depth {
		e.client.stage(build(e.client.desc(0), via.OpSend, nil, nil))
	}
	e.badPost(e.client, build(e.client.desc(0), via.OpSend, nil, nil), false, via.ErrResource, via.AsyncOverrun)
	e.client.vi.Doorbell()
	// The messages leave their receives, which what follows needs, unless the
	// error costs the connection.
	e.until("the messages", func() bool {
		lost := e.client.vi.Stats().Dropped + e.server.vi.Stats().Dropped
		return !e.unreliable() || len(e.server.done)+int(lost) >= depth
	})
	e.costs()
}

func receiveOverrun(e *env) {
	const depth = 5
	e.shallow(depth)
	for range depth {
		e.client.recv()
	}
	e.badPost(e.client, build(e.client.desc(0), via.OpRecv, nil, nil), true, via.ErrResource, via.AsyncOverrun)
	if e.unreliable() {
		e.mark(e.server, e.client) // makes room
	}
	e.costs()
}

func idleErrorRemembered(e *env) {
	e.idle()
	d, err := e.client.descs.NewDescriptor(e.client.dused+8, 64)
	e.check(err, "make descriptor")
	build(d, via.OpRecv, nil, nil)
	e.wants(e.client.vi.PostRecv(d), via.ErrInvalidParameter, "post a misaligned receive while idle")
	e.state(e.client, via.StateIdle)
	if n := e.client.count(via.AsyncPostDescriptor); n != 1 {
		e.t.Errorf("%d callbacks, want one", n)
	}
	l := e.listen(e.service())
	_, err = e.client.vi.Connect(e.timeout(), l.Addr())
	e.wants(err, via.ErrInvalidParameter, "connect after an error while idle")
	e.state(e.client, via.StateIdle)
	e.join(e.client.vi, e.server.vi)
}

func queueTooSmall(e *env) {
	x := e.client
	cq := x.newCQ(4)
	vi := x.newViOn(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	for range 8 {
		if err := vi.PostRecv(build(x.desc(0), via.OpRecv, nil, nil)); err != nil {
			e.t.Fatalf("post: %v", err)
		}
	}
	e.check(vi.Disconnect(), "disconnect")
	errs := x.errors()
	if len(errs) != 1 || errs[0].Code != via.AsyncCatastrophic || errs[0].CQ != cq {
		e.t.Errorf("callbacks %+v, want one catastrophic error of the queue", errs)
	}
	for cq.Poll(x.batch[:]) != 0 {
	}
}

func handlerMayPost(e *env) {
	e.connect()
	var posted *via.Descriptor
	x := e.server
	x.nic.ErrorCallback(func(a via.AsyncError) {
		x.record(a)
		if posted == nil {
			posted = x.send()
		}
	})
	x.recv()
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.until("the callback", func() bool { return posted != nil })
	e.flushed(x, posted)
	x.nic.ErrorCallback(nil) // the default handler logs
	e.rejoin()
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.breaks(x)
	if n := x.count(via.AsyncConnectionLost); n != 0 {
		e.t.Errorf("the handler is called after it was taken back")
	}
}

func othersSurvive(e *env) {
	e.connect()
	good := [2]*via.VI{e.client.vi, e.server.vi}
	e.idle()
	e.join(e.client.vi, e.server.vi)
	e.client.write(nowhere, e.client.buffer(8))
	e.breaks(e.client, e.server)
	e.client.vi, e.server.vi = good[0], good[1]
	src, dst := e.client.buffer(100), e.server.buffer(100)
	fill(src.b, 2)
	r := e.server.recv(dst)
	e.ok(e.client, e.client.send(src))
	e.ok(e.server, r)
	e.ok(e.client, e.client.write(at(dst), src))
	e.same(dst.b, pattern(100, 2), "message on the other connection")
	e.state(e.client, via.StateConnected)
	e.state(e.server, via.StateConnected)
}
