package viatest

import (
	"bytes"
	"time"

	"github.com/viablk/viablk/via"
)

// step is an operation of the workload of fault runs.
type step struct {
	op        via.Opcode
	size      int
	immediate bool // of an RDMA Write; every Send has it
}

// consumes reports whether the step consumes a receive.
func (s step) consumes() bool { return s.op == via.OpSend || s.immediate }

// script is the workload: everything that a send queue can be asked for, short
// and long.
var script = []step{
	{op: via.OpSend, size: 100},
	{op: via.OpRdmaWrite, size: 3000},
	{op: via.OpSend},
	{op: via.OpRdmaRead, size: 500},
	{op: via.OpRdmaWrite, size: 64, immediate: true},
	{op: via.OpSend, size: 20000},
	{op: via.OpSend, size: 1},
	{op: via.OpRdmaWrite, size: 20000},
	{op: via.OpRdmaRead, size: 9000},
	{op: via.OpSend, size: 4096},
	{op: via.OpRdmaWrite, immediate: true},
	{op: via.OpSend, size: 40},
}

// Batches of the script that share a doorbell.
const scriptBatch = 4

// run is a workload in progress, on a connection that faults may strike.
type run struct {
	*env
	fault   int // the step that is struck, from 0, or unplanned
	steps   []step
	descs   []*via.Descriptor // S's, by step
	local   []buf             // S's memory, by step
	remote  []buf             // R's memory that an RDMA step names
	rooms   []buf             // R's receives, in the order of their posts
	posted  map[*via.Descriptor]int
	step    map[*via.Descriptor]int
	model   model
	watched [2]int // completions of S and R that the model has seen
}

// unplanned is a fault that strikes no step in particular.
const unplanned = -1

// newRun connects both ends and posts R's receives.
func newRun(e *env, fault int) *run {
	e.t.Helper()
	e.connect()
	r := &run{env: e, fault: fault, posted: make(map[*via.Descriptor]int), step: make(map[*via.Descriptor]int)}
	for i, s := range script {
		if s.op == via.OpRdmaRead && !e.client.open().EnableRdmaRead {
			s.op = via.OpRdmaWrite
		}
		local, remote := e.client.buffer(s.size), e.server.buffer(s.size)
		fill(local.b, i)
		fill(remote.b, -1-i)
		r.steps, r.local, r.remote = append(r.steps, s), append(r.local, local), append(r.remote, remote)
	}
	for range len(script) + 4 { // a message that comes twice finds a receive
		b := e.server.buffer(20000)
		r.posted[e.server.recv(b)] = len(r.rooms)
		r.rooms = append(r.rooms, b)
	}
	r.model = newModel(r)
	return r
}

// descriptor builds a step's descriptor.
func (r *run) descriptor(i int) *via.Descriptor {
	s, local := r.steps[i], []buf{r.local[i]}
	if s.size > 1000 {
		local = cut(r.local[i], 3)
	}
	if s.op == via.OpSend {
		d := build(r.client.desc(len(local)), via.OpSend, nil, local)
		d.SetImmediate(uint32(i))
		return d
	}
	d := build(r.client.desc(1+len(local)), s.op, at(r.remote[i]), local)
	if s.immediate {
		d.SetImmediate(uint32(i))
	}
	return d
}

// carryOut posts the workload and drives both ends until nothing is left to do.
func (r *run) carryOut() {
	r.t.Helper()
	for i := range r.steps {
		d := r.descriptor(i)
		r.descs, r.step[d] = append(r.descs, d), i
		r.client.stage(d)
		if (i+1)%scriptBatch == 0 || i+1 == len(r.steps) {
			r.client.vi.Doorbell()
			r.watch()
		}
	}
	r.drive("the workload", func() bool { return r.client.allComplete() })
	for range 2 { // behind them nothing of the workload is in flight
		r.markEnd()
	}
	for range 100 {
		r.watch()
		pause()
	}
	if r.client.vi.State() != via.StateConnected || r.server.vi.State() != via.StateConnected {
		r.drive("both ends to break", r.broken)
		r.drive("the flush", func() bool { return r.client.allComplete() && r.server.allComplete() })
	}
	r.rest()
}

// markEnd sends a message behind the workload, and waits until it has arrived
// or both ends are broken. Where messages may be lost that can need several:
// the next one follows when the last one seems to be lost, ever later.
func (r *run) markEnd() {
	r.t.Helper()
	arrived := false
	for wait := firstMark; !arrived; wait *= 2 {
		r.server.recv()
		r.marked++
		want := marks + r.marked
		r.client.sendImmediate(want)
		next := time.Now().Add(wait)
		r.drive("the end of the workload", func() bool {
			arrived = r.broken() || r.model.marks[want] && r.client.allComplete()
			return arrived || r.unreliable() && time.Now().After(next)
		})
	}
}

// firstMark is how long a mark may be in flight before it counts as lost.
const firstMark = 100 * time.Millisecond

// broken reports whether both ends have lost the connection.
func (r *run) broken() bool {
	return r.client.vi.State() == via.StateError && r.server.vi.State() == via.StateError
}

// drive polls both ends, and lets the model check each, until cond holds.
func (r *run) drive(what string, cond func() bool) {
	r.t.Helper()
	r.untilBy(what, func() bool {
		r.watch()
		return cond()
	})
}

// watch polls each end and passes its completions to the model.
func (r *run) watch() {
	r.t.Helper()
	r.client.poll()
	for ; r.watched[0] < len(r.client.done); r.watched[0]++ {
		r.model.sent(&r.client.done[r.watched[0]])
	}
	r.server.poll()
	for ; r.watched[1] < len(r.server.done); r.watched[1]++ {
		r.model.received(&r.server.done[r.watched[1]])
	}
}

// rest checks that memory does not change once nothing is in flight.
func (r *run) rest() {
	r.t.Helper()
	before := bytes.Clone(r.server.arena.Bytes()[descriptorBytes : descriptorBytes+r.server.used])
	done := len(r.server.done)
	r.quietly()
	if !bytes.Equal(r.server.arena.Bytes()[descriptorBytes:descriptorBytes+r.server.used], before) {
		r.t.Errorf("memory changes although nothing is in flight")
	}
	if len(r.server.done) != done {
		r.t.Errorf("receives complete although nothing is in flight")
	}
}
