package viatest

import (
	"github.com/viablk/viablk/via"
)

var disconnectCases = []kitCase{
	{"SendWhileIdle", EarlyAdopter, "a Send posted while idle completes flushed at once", anyLevel, 0, sendWhileIdle},
	{"PostWhileBroken", EarlyAdopter, "what is posted in the error state completes flushed at once", anyLevel, 0, postWhileBroken},
	{"DisconnectIdle", EarlyAdopter, "disconnecting an idle VI flushes its receives in order", anyLevel, 0, disconnectIdle},
	{"DisconnectFlushes", EarlyAdopter, "disconnect completes everything outstanding, in order, and nothing later", anyLevel, 0, disconnectFlushes},
	{"PeerDisconnects", Functional, "when the peer disconnects the VI breaks, with one callback and everything flushed", anyLevel, 0, peerDisconnects},
	{"Reconnect", EarlyAdopter, "after error, disconnect and draining the VI connects again and works", anyLevel, 0, reconnect},
	{"BothDisconnect", EarlyAdopter, "both ends may disconnect at once", anyLevel, 0, bothDisconnect},
	{"DisconnectUnderLoad", Functional, "a disconnect while data flows leaves memory alone afterwards", anyLevel, 0, disconnectUnderLoad},
	{"DisconnectUnderRdma", Functional, "after a disconnect without an error no peer is inside a region, and none changes", anyLevel, 0, disconnectUnderRdma},
	{"OldCompletionsDoNotReturn", Functional, "a connection never sees the completions of the one before", anyLevel, 0, oldCompletions},
}

// flushed fails the case unless descriptors complete flushed, and in order.
func (e *env) flushed(x *end, posted ...*via.Descriptor) {
	e.t.Helper()
	for _, d := range posted {
		if c := e.fails(x, d, via.StatusFlushed); c.Length != 0 {
			e.t.Errorf("a flushed descriptor says %d bytes", c.Length)
		}
	}
}

func sendWhileIdle(e *env) {
	e.idle()
	pending := e.client.recv(e.client.buffer(8))
	s := e.client.send(e.client.buffer(8))
	if st := s.Status(); st&via.StatusErrorMask != via.StatusFlushed {
		e.t.Errorf("right after the post its status is %v", st)
	}
	e.flushed(e.client, s, e.client.write(nowhere, e.client.buffer(8)))
	e.quiet("the receive waits")
	e.state(e.client, via.StateIdle)
	e.join(e.client.vi, e.server.vi)
	e.ok(e.server, e.server.send())
	e.ok(e.client, pending)
}

func postWhileBroken(e *env) {
	e.connect()
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.breaks(e.server)
	for range 3 {
		r, s := e.server.recv(e.server.buffer(8)), e.server.send(e.server.buffer(8))
		for _, d := range []*via.Descriptor{r, s} {
			if st := d.Status(); st&via.StatusErrorMask != via.StatusFlushed {
				e.t.Errorf("right after the post its status is %v", st)
			}
		}
		e.flushed(e.server, r, s)
	}
	e.server.vi.Doorbell() // harmless
	e.state(e.server, via.StateError)
}

func disconnectIdle(e *env) {
	e.idle()
	var posted []*via.Descriptor
	for range 10 {
		posted = append(posted, e.client.recv(e.client.buffer(8)))
	}
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.flushed(e.client, posted...)
	e.state(e.client, via.StateIdle)
	e.check(e.client.vi.Disconnect(), "disconnect again")
	e.quiet("after the flush")
}

func disconnectFlushes(e *env) {
	e.connect()
	var receives []*via.Descriptor
	for range 20 {
		receives = append(receives, e.client.recv(e.client.buffer(64)))
	}
	size := int(min(256<<10, maxTransfer(e)))
	room, src := e.server.buffer(size), e.client.buffer(size)
	for range 40 {
		e.server.recv(room)
	}
	var sends []*via.Descriptor
	for range 40 { // more than a fabric holds: the server does not poll
		sends = append(sends, e.client.send(src))
	}
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.state(e.client, via.StateIdle)
	e.untilBy("all descriptors", func() bool { return len(e.client.done) == 60 }, e.client)
	failed := false
	for _, d := range sends { // some may be done; none after the first flushed
		st := d.Status()
		if failed && !st.Failed() || st.Failed() && st&via.StatusErrorMask != via.StatusFlushed {
			e.t.Fatalf("a send completed with %v (an earlier one flushed: %v)", st, failed)
		}
		failed = failed || st.Failed()
	}
	e.flushed(e.client, receives...)
	e.breaks(e.server)
	e.until("the server's receives", func() bool { return len(e.server.done) == 40 })
	e.quiet("after the flush")
}

func peerDisconnects(e *env) {
	e.connect()
	var posted []*via.Descriptor
	for range 10 {
		posted = append(posted, e.server.recv(e.server.buffer(8)))
	}
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.flushed(e.server, posted...)
	e.breaks(e.server)
	e.raised(e.server, via.AsyncConnectionLost)
	e.quiet("after the loss")
	errs := e.server.errors()
	if len(errs) != 1 || errs[0].VI != e.server.vi || errs[0].NIC != e.server.nic {
		e.t.Errorf("callbacks: %+v, want one for the vi", errs)
	}
	if n := len(e.client.errors()); n != 0 {
		e.t.Errorf("%d callbacks at the end that disconnected", n)
	}
}

func reconnect(e *env) {
	e.connect()
	for i := range 10 {
		breaker, other := e.client, e.server
		if i%2 == 1 {
			breaker, other = other, breaker
		}
		pending := other.recv(other.buffer(8))
		e.check(breaker.vi.Disconnect(), "disconnect")
		e.breaks(other)
		e.flushed(other, pending)
		e.rejoin()
		src, dst := e.client.buffer(100), e.server.buffer(100)
		fill(src.b, i)
		r := e.server.recv(dst)
		e.ok(e.client, e.client.send(src))
		e.ok(e.server, r)
		e.same(dst.b, pattern(100, i), "message after reconnecting")
	}
}

func bothDisconnect(e *env) {
	for range 20 {
		e.connect()
		ended := make(chan error, 1)
		go func() { ended <- e.server.vi.Disconnect() }()
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.check(<-ended, "disconnect")
		e.state(e.client, via.StateIdle)
		e.state(e.server, via.StateIdle)
	}
}

func disconnectUnderLoad(e *env) {
	e.connect()
	const size = 64 << 10
	src := e.client.buffer(size)
	fill(src.b, 1)
	for range 10 {
		room := e.server.buffer(size)
		for range 100 {
			e.server.recv(room)
		}
		for range 100 {
			e.client.send(src)
		}
		for len(e.server.done) == 0 {
			e.server.poll()
			e.client.poll()
		}
		e.check(e.server.vi.Disconnect(), "disconnect")
		clear(room.b)
		e.breaks(e.client)
		e.quietly()
		e.same(room.b, make([]byte, size), "receive memory after the disconnect")
		e.rejoin()
		e.client.done, e.server.done = nil, nil
	}
}

func disconnectUnderRdma(e *env) {
	e.connect()
	const size = 256 << 10
	src, dst := e.client.buffer(size), e.server.buffer(size)
	fill(src.b, 1)
	for range 10 {
		for range 20 {
			e.client.write(at(dst), src)
		}
		for len(e.client.done) == 0 {
			e.client.poll()
			e.server.poll()
		}
		e.check(e.server.vi.Disconnect(), "disconnect")
		if dst.mem.Accessed() {
			e.t.Error("a peer is inside the region, and the disconnect did not tell")
		}
		clear(dst.b)
		e.breaks(e.client)
		e.quietly()
		e.same(dst.b, make([]byte, size), "the region after the disconnect")
		e.rejoin()
		e.client.done, e.server.done = nil, nil
	}
}

// quietly polls both ends for a while.
func (e *env) quietly() {
	for range 100 {
		e.client.poll()
		e.server.poll()
		pause()
	}
}

func oldCompletions(e *env) {
	e.connect()
	for i := range 20 {
		for range 30 {
			e.server.recv(e.server.buffer(8))
		}
		for range 30 {
			e.client.send(e.client.buffer(8))
		}
		// Neither end has polled: completions may wait inside the provider.
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.check(e.server.vi.Disconnect(), "disconnect")
		e.untilBy("the client's", func() bool { return len(e.client.done) == 30 }, e.client)
		e.untilBy("the server's", func() bool { return len(e.server.done) == 30 }, e.server)
		e.client.done, e.server.done = nil, nil
		e.join(e.client.vi, e.server.vi)
		r := e.server.recv(e.server.buffer(8))
		e.client.sendImmediate(uint32(i), e.client.buffer(8))
		if c := e.ok(e.server, r); c.Immediate != uint32(i) {
			e.t.Fatalf("connection %d got the message of an earlier one", i)
		}
		e.until("the send", func() bool { return len(e.client.done) == 1 && len(e.server.done) == 1 })
		e.quiet("nothing else completes")
		e.client.done, e.server.done = nil, nil
	}
}
