package viatest

import (
	"bytes"

	"github.com/viablk/viablk/via"
)

// fence is how many bytes around the memory of an error case are guarded.
const fence = 64

// faultAt is which Send or RDMA operation of its link the bad one of a case is.
const faultAt = 3

// errCase is an error in progress: the operations posted before and behind it,
// and the memory that it must not change.
type errCase struct {
	*env
	bad   *via.Descriptor // S's that meets the error, if a posted one does
	named *via.Descriptor // what a callback about a descriptor must name
	op    via.Status      // of the receive that tells of the error, if not 0

	numbers uint32   // of messages
	early   []uint32 // messages before the error
	late    []uint32 // messages behind it
	behind  []*via.Descriptor

	arrives    bool            // the bad message arrives well, only its completion does not
	overtaken  bool            // what is behind may start before the error is known
	memoryGone *via.Descriptor // its completion says nothing: its memory is gone

	kept []kept
	from [2]int // completions of S and R before
}

// kept is memory that must not change.
type kept struct {
	x    *end
	b    []byte
	want []byte
	what string
}

// badNumber is the immediate data of the message that meets the error.
const badNumber = 0xbad

// newErrCase connects both ends and passes messages, so that the next operation
// of S is number faultAt.
func newErrCase(e *env, depth int) *errCase {
	e.t.Helper()
	if depth == 0 {
		e.connect()
	} else {
		e.shallow(depth)
	}
	for range faultAt - 1 {
		e.passes(e.client, e.server)
	}
	return &errCase{env: e, from: [2]int{len(e.client.done), len(e.server.done)}}
}

// guarded returns n bytes whose surroundings must not change.
func (s *errCase) guarded(x *end, n int) buf {
	s.t.Helper()
	b := x.buffer(fence + n + fence)
	fill(b.b, x.used)
	s.keep(x, b.b[:fence], "memory before the operand")
	s.keep(x, b.b[fence+n:], "memory behind the operand")
	return b.part(fence, n)
}

// keep expects memory to stay what it is.
func (s *errCase) keep(x *end, b []byte, what string) {
	s.kept = append(s.kept, kept{x, b, bytes.Clone(b), what})
}

// untouched returns n guarded bytes that must not change either.
func (s *errCase) untouched(x *end, n int) buf {
	b := s.guarded(x, n)
	s.keep(x, b.b, "the operand")
	return b
}

// receives posts receives that have room for the messages of a case.
func (s *errCase) receives(n int) {
	s.t.Helper()
	for range n {
		s.server.recv(s.guarded(s.server, 64))
	}
}

// message stages a good Send of S and returns its number.
func (s *errCase) message() (*via.Descriptor, uint32) {
	s.t.Helper()
	s.numbers++
	d := build(s.client.desc(1), via.OpSend, nil, []buf{s.guarded(s.client, 40)})
	d.SetImmediate(s.numbers)
	return s.client.stage(d), s.numbers
}

// follow stages good Sends behind the error and rings. There are receives for
// them.
func (s *errCase) follow() {
	s.t.Helper()
	for range 2 {
		d, n := s.message()
		s.behind, s.late = append(s.behind, d), append(s.late, n)
	}
	s.client.vi.Doorbell()
}

// strike stages the operation that meets the error and what follows it.
func (s *errCase) strike(d *via.Descriptor) {
	s.t.Helper()
	s.bad = s.client.stage(d)
	s.follow()
}

// send returns a Send from local memory, numbered as the bad message.
func (s *errCase) badSend(local ...buf) *via.Descriptor {
	d := build(s.client.desc(len(local)), via.OpSend, nil, local)
	d.SetImmediate(badNumber)
	return d
}

// badRdma returns an RDMA operation.
func (s *errCase) badRdma(op via.Opcode, to *target, local ...buf) *via.Descriptor {
	return build(s.client.desc(1+len(local)), op, to, local)
}

// badWriteImmediate returns an RDMA Write numbered as the bad message.
func (s *errCase) badWriteImmediate(to *target, local ...buf) *via.Descriptor {
	d := s.badRdma(via.OpRdmaWrite, to, local...)
	d.SetImmediate(badNumber)
	return d
}
