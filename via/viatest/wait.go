package viatest

import (
	"bytes"
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

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

// heard returns the code that an end hears where the rule names one.
func (e *env) heard(code via.AsyncCode) via.AsyncCode {
	if c, ok := e.f.Tells[code]; ok && !e.unreliable() {
		return c
	}
	return code
}

// raised waits for an asynchronous error.
func (e *env) raised(x *end, code via.AsyncCode) {
	e.t.Helper()
	code = e.heard(code)
	e.until(x.name+"'s asynchronous error "+code.String(), func() bool { return x.count(code) > 0 })
}

// same fails the case unless two byte slices are equal.
func (e *env) same(got, want []byte, what string) {
	e.t.Helper()
	if len(got) != len(want) {
		e.t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			e.t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

// costs checks what an error cost: nothing more at unreliable delivery, else
// the connection, which is made again.
func (e *env) costs() {
	e.t.Helper()
	if !e.unreliable() {
		e.breaks(e.client, e.server)
		e.rejoin()
		return
	}
	for _, way := range [][2]*end{{e.client, e.server}, {e.server, e.client}} {
		e.passes(way[0], way[1])                                 // behind it, every completion before it is taken
		for len(way[1].posted[queueKey{way[1].vi, true}]) != 0 { // none is left to what comes next
			e.mark(way[0], way[1])
		}
	}
	e.client.forget()
	e.server.forget()
}

// marks is where the immediate data of marking messages begins.
const marks = 0xf0000000

// lostMark is how long a good message may be in flight before it counts as
// lost.
const lostMark = time.Second

// passes sends a message of no bytes, which its receiver gets after whatever
// was sent before, in a receive that may have been posted before.
func (e *env) passes(from, to *end) {
	e.t.Helper()
	to.recv()
	e.mark(from, to)
}

// mark is passes where receives are posted. At unreliable delivery a fabric
// that is still full of what came before may drop the message: another one
// follows.
func (e *env) mark(from, to *end) {
	e.t.Helper()
	first, arrived := marks+e.marked+1, false
	for wait := lostMark; !arrived; wait *= 2 {
		if e.marked++; marks+e.marked != first {
			to.recv() // for the one before, should it be late
		}
		e.ok(from, from.sendImmediate(marks+e.marked))
		next := time.Now().Add(wait)
		e.until("a good message to "+to.name, func() bool {
			arrived = slices.ContainsFunc(to.done, func(c via.Completion) bool {
				return c.Recv && !c.Status.Failed() && c.Immediate >= first && c.Immediate <= marks+e.marked
			})
			return arrived || e.unreliable() && time.Now().After(next)
		})
	}
	if from.vi.State() != via.StateConnected || to.vi.State() != via.StateConnected {
		e.t.Fatalf("not connected after a good message; client: %v; server: %v", e.client, e.server)
	}
}
