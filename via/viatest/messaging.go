package viatest

import (
	"encoding/binary"
	"fmt"

	"github.com/viablk/viablk/via"
	"pgregory.net/rapid"
)

var messagingCases = []kitCase{
	{"SendReceive", EarlyAdopter, "a Send's bytes arrive in the receive at the head of the peer's queue", anyLevel, 0, sendReceive},
	{"ZeroLengthMessage", EarlyAdopter, "a message of no bytes, with no segment or empty ones, consumes one receive", anyLevel, 0, zeroLength},
	{"SegmentCounts", EarlyAdopter, "1, 2 and 252 segments gather and scatter", anyLevel, 0, segmentCounts},
	{"GatherScatterModel", EarlyAdopter, "any cut of a message into segments delivers the same bytes", anyLevel, 0, gatherScatterModel},
	{"ImmediateData", EarlyAdopter, "immediate data comes with its message and is flagged", anyLevel, 0, immediateData},
	{"ShortMessage", EarlyAdopter, "a message shorter than its receive leaves the rest of the memory alone", anyLevel, 0, shortMessage},
	{"MaxTransferSize", EarlyAdopter, "a message of just the maximum transfer size passes", anyLevel, 0, maxTransferSize},
	{"MaxTransferSizePlusOne", Functional, "one byte more completes with a length error, and costs a reliable connection", anyLevel, 0, maxTransferPlusOne},
	{"BigMessages", EarlyAdopter, "messages larger than a provider's buffers pass, also several at once", reliable, 0, bigMessages},
	{"PacedMessages", EarlyAdopter, "messages that their receiver takes one by one all arrive, up to 32 KiB, and longer ones whole or not at all", unreliable, 0, pacedMessages},
	{"LengthMismatch", Functional, "a Length field that is not the sum of the segments is a length error", anyLevel, 0, lengthMismatch},
	{"FormatErrors", Functional, "reserved bits, reserved opcode, missing and surplus segments are format errors", anyLevel, 0, formatErrors},
	{"ReceiveFormatError", Functional, "a receive with control bits is a format error", anyLevel, 0, receiveFormatError},
	{"ErrorKeepsItsPlace", Functional, "a faulty descriptor completes after its predecessors; its successors are flushed, or sent where nothing breaks", anyLevel, 0, errorKeepsItsPlace},
}

func sendReceive(e *env) {
	e.connect()
	for _, dir := range [][2]*end{{e.client, e.server}, {e.server, e.client}} {
		from, to := dir[0], dir[1]
		src, dst := from.buffer(1000), to.buffer(1000)
		fill(src.b, 1)
		r := to.recv(dst)
		s := from.send(src)
		e.op(e.ok(from, s), via.StatusOpSend)
		c := e.ok(to, r)
		e.op(c, via.StatusOpReceive)
		if c.Length != 1000 || !c.Recv || c.Status&via.StatusImmediate != 0 {
			e.t.Errorf("receive completed as %+v", c)
		}
		e.same(dst.b, pattern(1000, 1), "message")
	}
}

func zeroLength(e *env) {
	e.connect()
	empty := e.client.buffer(0)
	canary := e.server.buffer(64)
	fill(canary.b, 9)
	for _, local := range [][]buf{nil, {empty}, {empty, empty}} {
		for _, room := range [][]buf{nil, {canary}} {
			r := e.server.recv(room...)
			e.ok(e.client, e.client.send(local...))
			if c := e.ok(e.server, r); c.Length != 0 {
				e.t.Errorf("message of %d bytes, want 0", c.Length)
			}
		}
	}
	e.same(canary.b, pattern(64, 9), "receive memory under an empty message")
}

// cut splits a piece into n nearly equal ones, the first of them empty if there
// are more pieces than bytes.
func cut(b buf, n int) []buf {
	out := make([]buf, n)
	for i := range out {
		from, to := len(b.b)*i/n, len(b.b)*(i+1)/n
		out[i] = b.part(from, to-from)
	}
	return out
}

func segmentCounts(e *env) {
	e.connect()
	limit := min(e.f.Client.Limits().MaxSegmentsPerDesc, e.f.Server.Limits().MaxSegmentsPerDesc)
	for i, n := range []int{1, 2, 252, limit} {
		for j, m := range []int{1, 2, 252, limit} {
			src, dst := e.client.buffer(5000), e.server.buffer(5000)
			fill(src.b, 10*i+j)
			r := e.server.recv(cut(dst, m)...)
			e.ok(e.client, e.client.send(cut(src, n)...))
			e.ok(e.server, r)
			e.same(dst.b, pattern(5000, 10*i+j), fmt.Sprintf("message of %d segments received in %d", n, m))
		}
	}
}

// cuts draws how to cut a piece.
func cuts(rt *rapid.T, b buf, label string) []buf {
	var out []buf
	for len(b.b) > 0 && len(out) < 60 {
		n := rapid.IntRange(0, len(b.b)).Draw(rt, label)
		out = append(out, b.part(0, n))
		b = b.part(n, len(b.b)-n)
	}
	return append(out, b)
}

func gatherScatterModel(e *env) {
	e.connect()
	const room = 20000
	src, dst := e.client.buffer(room), e.server.buffer(room)
	seed := 0
	rapid.Check(e.t, func(rt *rapid.T) {
		e.client.dused, e.server.dused = 0, 0
		seed++
		fill(src.b, seed)
		fill(dst.b, -seed)
		n := rapid.IntRange(0, room/2).Draw(rt, "length")
		from := rapid.IntRange(0, room-n).Draw(rt, "source offset")
		to := rapid.IntRange(0, room-n).Draw(rt, "destination offset")
		size := rapid.IntRange(n, room-to).Draw(rt, "receive length")
		model := append([]byte(nil), dst.b...)
		copy(model[to:], src.b[from:from+n])

		r := e.server.recv(cuts(rt, dst.part(to, size), "receive segment")...)
		delete(e.server.seen, r)
		s := e.client.send(cuts(rt, src.part(from, n), "send segment")...)
		delete(e.client.seen, s)
		e.ok(e.client, s)
		if c := e.ok(e.server, r); int(c.Length) != n {
			rt.Fatalf("receive says %d bytes, want %d", c.Length, n)
		}
		for i := range model {
			if dst.b[i] != model[i] {
				rt.Fatalf("byte %d of the receiver's memory is %#x, want %#x", i, dst.b[i], model[i])
			}
		}
	})
}

func immediateData(e *env) {
	e.connect()
	src := e.client.buffer(10)
	for _, v := range []uint32{0, 1, 0xffffffff} {
		for _, local := range [][]buf{{src}, nil} {
			r := e.server.recv(e.server.buffer(10))
			e.ok(e.client, e.client.sendImmediate(v, local...))
			c := e.ok(e.server, r)
			if c.Status&via.StatusImmediate == 0 || c.Immediate != v || r.Immediate() != v {
				e.t.Errorf("immediate data %#x arrived as %+v, descriptor %#x", v, c, r.Immediate())
			}
		}
	}
}

func shortMessage(e *env) {
	e.connect()
	src, dst := e.client.buffer(100), e.server.buffer(300)
	fill(src.b, 1)
	fill(dst.b, 2)
	want := pattern(300, 2)
	copy(want[50:], pattern(100, 1))
	r := e.server.recv(dst.part(50, 70), dst.part(120, 130))
	e.ok(e.client, e.client.send(src))
	if c := e.ok(e.server, r); c.Length != 100 {
		e.t.Errorf("receive says %d bytes, want 100", c.Length)
	}
	e.same(dst.b, want, "receive memory and its surroundings")
}

// small returns attributes with a small maximum transfer size.
func (x *end) small(size uint32) via.ViAttributes {
	a := x.attributes()
	a.MaxTransferSize = size
	return a
}

func (e *env) connectSmall(size uint32) {
	e.t.Helper()
	e.client.vi = e.client.newVI(e.client.small(size))
	e.server.vi = e.server.newVI(e.server.small(size))
	e.join(e.client.vi, e.server.vi)
}

func maxTransferSize(e *env) {
	for _, size := range []uint32{1, 4096, 32 << 10} {
		e.connectSmall(size)
		src, dst := e.client.buffer(int(size)), e.server.buffer(int(size))
		fill(src.b, int(size))
		r := e.server.recv(dst)
		e.ok(e.client, e.client.send(src))
		e.ok(e.server, r)
		e.same(dst.b, pattern(int(size), int(size)), "message of the maximum size")
		if remote := at(dst); size > 1 {
			e.ok(e.client, e.client.write(remote, src))
		}
	}
}

func maxTransferPlusOne(e *env) {
	e.connectSmall(4096)
	src, dst := e.client.buffer(4097), e.server.buffer(4096)
	ops := map[string]func() *via.Descriptor{
		"send":       func() *via.Descriptor { return e.client.send(src) },
		"rdma write": func() *via.Descriptor { return e.client.write(at(dst), src) },
	}
	for _, post := range ops {
		r := e.server.recv(dst)
		e.fails(e.client, post(), via.StatusLengthError)
		e.costs()
		if c := e.completion(e.server, r); c.Length != 0 { // flushed, or taken by a message of no bytes
			e.t.Errorf("the receive completed with %d bytes, %v", c.Length, c.Status)
		}
		e.same(dst.b, make([]byte, 4096), "receive memory")
	}
}

func bigMessages(e *env) {
	e.connect()
	size := int(min(1<<20, maxTransfer(e)))
	const count = 8
	var got [count]*via.Descriptor
	var dst [count]buf
	for i := range count {
		dst[i] = e.server.buffer(size)
		got[i] = e.server.recv(dst[i])
	}
	for i := range count {
		src := e.client.buffer(size)
		fill(src.b, i)
		e.client.send(src)
	}
	for i := range count {
		e.ok(e.server, got[i])
		e.same(dst[i].b, pattern(size, i), fmt.Sprintf("big message %d", i))
	}
	e.until("the sends to complete", func() bool { send, _ := e.client.vi.QueuesEmpty(); return send })
}

func pacedMessages(e *env) {
	e.connect()
	const guaranteed = 32 << 10 // the least transfer size of VIA
	for i, size := range []int{0, 1, 4096, guaranteed, 64 << 10, 256 << 10, 1 << 20, guaranteed} {
		size = min(size, int(maxTransfer(e)))
		src, dst := e.client.buffer(size), e.server.buffer(size)
		fill(src.b, i)
		r := e.server.recv(dst)
		e.ok(e.client, e.client.sendImmediate(uint32(i), src))
		e.costs() // a good message behind it, nothing more
		c := e.completion(e.server, r)
		if size > guaranteed && (c.Status&via.StatusErrorMask == partial || c.Immediate != uint32(i)) {
			continue // dropped: the receive has a part of it, or the message after it
		}
		if c.Status.Failed() || c.Immediate != uint32(i) || int(c.Length) != size {
			e.t.Fatalf("message %d of %d bytes arrived as %d of %d", i, size, c.Immediate, c.Length)
		}
		e.same(dst.b, pattern(size, i), "message")
	}
}

func lengthMismatch(e *env) {
	e.connect()
	for _, length := range []uint32{0, 99, 101, 0xffffffff} {
		d := build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(100)})
		binary.LittleEndian.PutUint32(d.Bytes()[24:], length)
		e.client.postSend(e.client.vi, d)
		e.fails(e.client, d, via.StatusLengthError)
		e.costs()
	}
}

func formatErrors(e *env) {
	e.connect()
	b := e.client.buffer(8)
	control := func(d *via.Descriptor, v uint16) { binary.LittleEndian.PutUint16(d.Bytes()[14:], v) }
	segments := func(d *via.Descriptor, v uint16) { binary.LittleEndian.PutUint16(d.Bytes()[12:], v) }
	for name, spoil := range map[string]func(d *via.Descriptor){
		"reserved control bit":        func(d *via.Descriptor) { control(d, 0x10) },
		"highest control bit":         func(d *via.Descriptor) { control(d, 0x8000) },
		"reserved opcode":             func(d *via.Descriptor) { control(d, 3) },
		"reserved field":              func(d *via.Descriptor) { d.Bytes()[16] = 1 },
		"more segments than memory":   func(d *via.Descriptor) { segments(d, 3) },
		"65535 segments":              func(d *via.Descriptor) { segments(d, 0xffff) },
		"write without address":       func(d *via.Descriptor) { segments(d, 0); control(d, 1) },
		"read with immediate data":    func(d *via.Descriptor) { control(d, 2|4); segments(d, 2) },
		"read without a data segment": func(d *via.Descriptor) { control(d, 2) },
	} {
		d := build(e.client.desc(2), via.OpSend, nil, []buf{b})
		spoil(d)
		e.client.postSend(e.client.vi, d)
		if c := e.completion(e.client, d); c.Status&via.StatusErrorMask != via.StatusFormatError {
			e.t.Errorf("%s: completed with %v, want a format error", name, c.Status)
		}
		e.costs()
	}
	limit := e.client.nic.Limits().MaxSegmentsPerDesc
	d := e.client.desc(limit + 1)
	d.Reset(via.OpSend)
	for range limit + 1 {
		d.AddSegment(b.addr(), b.mem.Handle(), 0)
	}
	e.client.postSend(e.client.vi, d)
	e.fails(e.client, d, via.StatusFormatError)
	e.costs()
}

func receiveFormatError(e *env) {
	e.connect()
	d := build(e.server.desc(1), via.OpRecv, nil, []buf{e.server.buffer(8)})
	d.SetImmediate(1)
	e.server.postRecv(e.server.vi, d)
	e.fails(e.server, d, via.StatusFormatError)
	e.costs()
}

func errorKeepsItsPlace(e *env) {
	e.connect()
	const before, after = 5, 4
	for range before + after {
		e.server.recv(e.server.buffer(8))
	}
	var good, late []*via.Descriptor
	for range before {
		good = append(good, e.client.stage(build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(8)})))
	}
	bad := build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(8)})
	binary.LittleEndian.PutUint32(bad.Bytes()[24:], 9)
	e.client.stage(bad)
	for range after {
		late = append(late, e.client.stage(build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(8)})))
	}
	e.client.vi.Doorbell()
	for _, d := range good {
		e.ok(e.client, d)
	}
	e.fails(e.client, bad, via.StatusLengthError)
	for _, d := range late {
		if e.unreliable() {
			e.ok(e.client, d)
		} else {
			e.fails(e.client, d, via.StatusFlushed)
		}
	}
	e.costs()
}
