package viatest

import (
	"encoding/binary"

	"github.com/viablk/viablk/via"
)

var spillCases = []kitCase{
	{"SpillKeepsOrder", Functional, "more Sends than a link holds are sent in the order of their posts, all of them", anyLevel, 0, spillKeepsOrder},
	{"SpillRefillsRarely", Functional, "Sends that waited for the link are handed on by the half window, not one by one", anyLevel, 0, spillRefillsRarely},
	{"SpillOfEverything", Functional, "Sends, RDMA and fences that waited for the link complete as if they had not", anyLevel, 0, spillOfEverything},
	{"SpillFlushes", Functional, "a disconnect flushes what waits for the link as well", anyLevel, 0, spillFlushes},
}

const (
	spilled   = 1000 // posts to a queue
	linkDepth = 128  // works that a link holds at most
)

// connectDeep connects VIs whose queues take many more descriptors than a link.
func (e *env) connectDeep() {
	e.t.Helper()
	for _, x := range []*end{e.client, e.server} {
		if limit := x.nic.Limits().MaxDescriptorsPerQueue; limit < spilled {
			e.t.Fatalf("%s: queues take %d descriptors at most", x.name, limit)
		}
		cq := x.newCQ(2 * spilled)
		x.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: spilled, RecvDepth: spilled})
	}
	e.join(e.client.vi, e.server.vi)
}

// numbered stages a Send of its number in four bytes.
func (e *env) numbered(i int) *via.Descriptor {
	e.t.Helper()
	b := e.client.buffer(4)
	binary.LittleEndian.PutUint32(b.b, uint32(i))
	d := build(e.client.desc(1), via.OpSend, nil, []buf{b})
	d.SetImmediate(uint32(i))
	return e.client.stage(d)
}

// spillMessages sends many messages with one doorbell.
func (e *env) spillMessages() {
	e.t.Helper()
	rooms := make(map[*via.Descriptor]buf)
	for range spilled {
		b := e.server.buffer(4)
		rooms[e.server.recv(b)] = b
	}
	for i := range spilled {
		e.numbered(i)
	}
	e.client.vi.Doorbell()
	e.until("all messages", func() bool { return len(e.client.done) == spilled && len(e.server.done) == spilled })
	for i, c := range e.server.done {
		got := binary.LittleEndian.Uint32(rooms[c.Descriptor].b)
		if c.Status.Failed() || int(c.Immediate) != i || int(got) != i {
			e.t.Fatalf("receive %d: message %d with number %d, %v", i, got, c.Immediate, c.Status)
		}
	}
	for i, c := range e.client.done {
		if c.Status.Failed() {
			e.t.Fatalf("send %d completed with %v", i, c.Status)
		}
	}
}

func spillKeepsOrder(e *env) {
	e.connectDeep()
	e.spillMessages()
}

func spillRefillsRarely(e *env) {
	e.connectDeep()
	if s := e.client.vi.SendQueueStats(); s != (via.QueueStats{}) {
		e.t.Errorf("a new queue counts %+v", s)
	}
	e.spillMessages()
	s := e.client.vi.SendQueueStats()
	if s.Spilled != spilled-linkDepth {
		e.t.Errorf("%d of %d posts waited, want all but the %d of the window", s.Spilled, spilled, linkDepth)
	}
	if most := s.Spilled/(linkDepth/2) + 1; s.Refills == 0 || s.Refills > most {
		e.t.Errorf("%d posts were handed on at %d times, want at most %d", s.Spilled, s.Refills, most)
	}
}

func spillOfEverything(e *env) {
	e.connectDeep()
	reads := e.client.open().EnableRdmaRead
	src := e.server.buffer(64)
	fill(src.b, 7)
	written, read := e.server.buffer(4*spilled), e.client.buffer(4*spilled)
	messages := 0
	for i := range spilled {
		var d *via.Descriptor
		switch {
		case i%4 == 1:
			b := e.client.buffer(4)
			binary.LittleEndian.PutUint32(b.b, uint32(i))
			d = build(e.client.desc(2), via.OpRdmaWrite, at(written.part(4*i, 4)), []buf{b})
		case i%4 == 2 && reads:
			d = build(e.client.desc(2), via.OpRdmaRead, at(src.part(0, 4)), []buf{read.part(4*i, 4)})
		default:
			e.server.recv(e.server.buffer(4))
			d = build(e.client.desc(0), via.OpSend, nil, nil)
			d.SetImmediate(uint32(i))
			messages++
		}
		if i%50 == 3 {
			d.SetFence()
		}
		e.client.stage(d)
	}
	e.client.vi.Doorbell()
	e.until("all operations", func() bool { return len(e.client.done) == spilled && len(e.server.done) == messages })
	for i, c := range e.client.done {
		if c.Status.Failed() {
			e.t.Fatalf("operation %d completed with %v", i, c.Status)
		}
		got := binary.LittleEndian.Uint32(written.b[4*i:])
		if i%4 == 1 && int(got) != i || i%4 != 1 && got != 0 {
			e.t.Fatalf("operation %d: %d is written", i, got)
		}
		if i%4 == 2 && reads {
			e.same(read.b[4*i:4*i+4], src.b[:4], "read memory")
		}
	}
	last := -1
	for _, c := range e.server.done {
		if int(c.Immediate) <= last {
			e.t.Fatalf("message %d arrived after message %d", c.Immediate, last)
		}
		last = int(c.Immediate)
	}
}

func spillFlushes(e *env) {
	e.connectDeep()
	for i := range spilled {
		e.numbered(i)
	}
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.untilBy("all sends", func() bool { return len(e.client.done) == spilled }, e.client)
	for i, c := range e.client.done[linkDepth:] {
		if c.Status&via.StatusErrorMask != via.StatusFlushed {
			e.t.Fatalf("send %d, which the link never had, completed with %v", linkDepth+i, c.Status)
		}
	}
	e.client.done = nil
	e.check(e.server.vi.Disconnect(), "disconnect")
	e.join(e.client.vi, e.server.vi)
	e.client.dused, e.client.used = 0, 0
	e.spillMessages()
}
