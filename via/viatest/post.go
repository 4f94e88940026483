package viatest

import (
	"encoding/binary"

	"github.com/viablk/viablk/via"
)

// fill writes a pattern that depends on a seed.
func fill(b []byte, seed int) {
	z := uint64(seed)*0x9e3779b97f4a7c15 + 0x76696120
	var piece [1024]byte
	for len(b) > 0 {
		z = scatter(&piece, z)
		b = b[copy(b, piece[:]):]
	}
}

// scatter fills a piece of memory of its caller's, and returns what follows z.
// The race detector, which would look at every word, sees the copy of the
// piece.
//
//go:norace
func scatter(piece *[1024]byte, z uint64) uint64 {
	for at := 0; at < len(piece); at += 8 {
		z ^= z << 13
		z ^= z >> 7
		z ^= z << 17
		binary.LittleEndian.PutUint64(piece[at:], z)
	}
	return z
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
