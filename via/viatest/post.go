package viatest

import (
	"math/rand/v2"

	"github.com/viablk/viablk/via"
)

// fill writes a pattern that depends on a seed.
func fill(b []byte, seed int) {
	r := rand.NewPCG(uint64(seed), 0x76696120)
	for i := 0; i < len(b); i += 8 {
		v := r.Uint64()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j], v = byte(v), v>>8
		}
	}
}

// pattern returns n bytes of fill.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// build fills a descriptor for an operation over local pieces.
func build(d *via.Descriptor, op via.Opcode, remote *target, local []buf) *via.Descriptor {
	d.Reset(op)
	if remote != nil {
		d.SetRemote(remote.addr, remote.handle)
	}
	for _, b := range local {
		if !d.AddSegment(b.addr(), b.mem.Handle(), uint32(len(b.b))) {
			panic("viatest: descriptor without room for its segments")
		}
	}
	return d
}

// target is the remote operand of an RDMA operation.
type target struct {
	addr   uint64
	handle uint32
}

// at returns the target that a piece of the peer's memory is.
func at(b buf) *target { return &target{b.addr(), b.mem.Handle()} }

// staged books a descriptor as posted to the default VI's send queue, without a
// doorbell.
func (x *end) stage(d *via.Descriptor) *via.Descriptor {
	x.e.t.Helper()
	x.book(x.vi, false, d)
	x.e.check(x.vi.StageSend(d), x.name+": post send")
	return d
}

// book expects the completion of a descriptor that is about to be posted.
func (x *end) book(vi *via.VI, recv bool, d *via.Descriptor) {
	key := queueKey{vi, recv}
	x.posted[key] = append(x.posted[key], d)
}

// postSend posts a descriptor to a VI's send queue and rings.
func (x *end) postSend(vi *via.VI, d *via.Descriptor) *via.Descriptor {
	x.e.t.Helper()
	x.book(vi, false, d)
	x.e.check(vi.PostSend(d), x.name+": post send")
	return d
}

// postRecv posts a descriptor to a VI's receive queue.
func (x *end) postRecv(vi *via.VI, d *via.Descriptor) *via.Descriptor {
	x.e.t.Helper()
	x.book(vi, true, d)
	x.e.check(vi.PostRecv(d), x.name+": post receive")
	return d
}

// recv posts a receive over local pieces.
func (x *end) recv(local ...buf) *via.Descriptor {
	x.e.t.Helper()
	return x.postRecv(x.vi, build(x.desc(len(local)), via.OpRecv, nil, local))
}

// send posts a Send.
func (x *end) send(local ...buf) *via.Descriptor {
	x.e.t.Helper()
	return x.postSend(x.vi, build(x.desc(len(local)), via.OpSend, nil, local))
}

// sendImmediate posts a Send with immediate data.
func (x *end) sendImmediate(v uint32, local ...buf) *via.Descriptor {
	x.e.t.Helper()
	d := build(x.desc(len(local)), via.OpSend, nil, local)
	d.SetImmediate(v)
	return x.postSend(x.vi, d)
}

// write posts an RDMA Write.
func (x *end) write(to *target, local ...buf) *via.Descriptor {
	x.e.t.Helper()
	return x.postSend(x.vi, build(x.desc(1+len(local)), via.OpRdmaWrite, to, local))
}

// writeImmediate posts an RDMA Write with immediate data.
func (x *end) writeImmediate(v uint32, to *target, local ...buf) *via.Descriptor {
	x.e.t.Helper()
	d := build(x.desc(1+len(local)), via.OpRdmaWrite, to, local)
	d.SetImmediate(v)
	return x.postSend(x.vi, d)
}

// read posts an RDMA Read.
func (x *end) read(from *target, local ...buf) *via.Descriptor {
	x.e.t.Helper()
	return x.postSend(x.vi, build(x.desc(1+len(local)), via.OpRdmaRead, from, local))
}

// completion waits for a descriptor's completion.
func (e *env) completion(x *end, d *via.Descriptor) via.Completion {
	e.t.Helper()
	e.until(x.name+"'s descriptor", func() bool { _, ok := x.seen[d]; return ok })
	return x.seen[d]
}

// ok waits for a descriptor to complete without error.
func (e *env) ok(x *end, d *via.Descriptor) via.Completion {
	e.t.Helper()
	c := e.completion(x, d)
	if c.Status.Failed() {
		e.t.Fatalf("%s: descriptor completed with %v; client: %v; server: %v", x.name, c.Status, e.client, e.server)
	}
	return c
}

// fails waits for a descriptor to complete with just one error bit.
func (e *env) fails(x *end, d *via.Descriptor, bit via.Status) via.Completion {
	e.t.Helper()
	c := e.completion(x, d)
	if c.Status&via.StatusErrorMask != bit {
		e.t.Fatalf("%s: descriptor completed with %v, want %v; client: %v; server: %v",
			x.name, c.Status, bit|via.StatusDone, e.client, e.server)
	}
	return c
}

// op fails the case unless a completion carries an operation.
func (e *env) op(c via.Completion, want via.Status) {
	e.t.Helper()
	if c.Status&via.StatusOpMask != want {
		e.t.Errorf("completion's operation bits are %#x, want %#x", uint32(c.Status&via.StatusOpMask), uint32(want))
	}
}

// breaks waits for VIs to enter the error state.
func (e *env) breaks(ends ...*end) {
	e.t.Helper()
	for _, x := range ends {
		e.until(x.name+" to enter the error state", func() bool { return x.vi.State() == via.StateError })
	}
}

// raised waits for an asynchronous error.
func (e *env) raised(x *end, code via.AsyncCode) {
	e.t.Helper()
	e.until(x.name+"'s asynchronous error "+code.String(), func() bool { return x.count(code) > 0 })
}

// same fails the case unless two byte slices are equal.
func (e *env) same(got, want []byte, what string) {
	e.t.Helper()
	if len(got) != len(want) {
		e.t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			e.t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}
