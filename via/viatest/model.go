package viatest

import (
	"bytes"

	"github.com/viablk/viablk/via"
)

// model knows what may happen in a run whatever the fabric does: a message
// arrives at most once, whole, in its order; reliable levels leave no gap; what
// reliable reception calls done is in place; behind a step that meets an error
// nothing happens there.
type model struct {
	r        *run
	want     [][]byte // by step, what its bytes are
	before   [][]byte // by step, R's memory before
	arrived  []int    // steps, in the order in which their messages came
	marks    map[uint32]bool
	failed   [2]bool // S's and R's queue completed a descriptor in error
	firstBad int     // S's first step that met an error, or the number of steps
}

func newModel(r *run) model {
	o := model{r: r, marks: make(map[uint32]bool), firstBad: len(r.steps)}
	for i := range r.steps {
		o.want = append(o.want, bytes.Clone(r.local[i].b))
		o.before = append(o.before, bytes.Clone(r.remote[i].b))
	}
	return o
}

// struck reports whether a fault may have struck a step.
func (o *model) struck(i int) bool { return o.r.fault == i || o.r.fault == unplanned }

// sent checks a completion of S, before R is polled again.
func (o *model) sent(c *via.Completion) {
	o.r.t.Helper()
	i, known := o.r.step[c.Descriptor]
	if c.Recv || !known {
		return
	}
	if c.Status.Failed() {
		o.failed[0] = true
		if c.Status&via.StatusErrorMask != flushed { // its answer may be lost with the connection
			o.firstBad = min(o.firstBad, i)
		}
		return
	}
	if o.failed[0] && !o.r.unreliable() {
		o.r.t.Errorf("step %d completed well behind a failed one", i)
	}
	switch {
	case o.r.steps[i].op == via.OpRdmaRead:
		if !bytes.Equal(o.r.local[i].b, o.before[i]) {
			o.r.t.Errorf("step %d read other bytes than R has", i)
		}
	case o.r.level == via.ReliableReception && !o.inPlace(i):
		o.r.t.Errorf("step %d is done, but its bytes are not in R's memory", i)
	}
}

// inPlace reports whether a message or an RDMA Write is in R's memory. In
// order, the n-th message meets the n-th receive.
func (o *model) inPlace(i int) bool {
	if o.r.steps[i].op == via.OpRdmaWrite {
		return bytes.Equal(o.r.remote[i].b, o.want[i])
	}
	meets := 0
	for _, s := range o.r.steps[:i] {
		if s.consumes() {
			meets++
		}
	}
	return bytes.Equal(o.r.rooms[meets].b[:len(o.want[i])], o.want[i])
}

// received looks at a completion of R.
func (o *model) received(c *via.Completion) {
	o.r.t.Helper()
	if c.Status.Failed() {
		o.failed[1] = true
		return
	}
	if o.failed[1] && !o.r.unreliable() {
		o.r.t.Errorf("message %d arrived behind a failed receive", c.Immediate)
	}
	if c.Immediate >= marks {
		o.marks[c.Immediate] = true
		return
	}
	i := int(c.Immediate)
	if i >= len(o.r.steps) || !o.r.steps[i].consumes() {
		o.r.t.Errorf("message %d arrived, which no end sent", i)
		return
	}
	o.checkOrder(i)
	o.checkBytes(i, c)
	o.arrived = append(o.arrived, i)
}

// checkOrder compares a message's place with its step.
func (o *model) checkOrder(i int) {
	o.r.t.Helper()
	next := 0 // the message that comes next in order
	for _, a := range o.arrived {
		if a == i {
			o.r.t.Errorf("message %d arrived twice", i)
		}
		if !o.struck(a) {
			next = max(next, a+1)
		}
	}
	if i < next && !o.struck(i) {
		o.r.t.Errorf("message %d arrived after message %d", i, next-1)
	}
	if o.r.unreliable() {
		return
	}
	for k, a := 0, 0; k < i; k++ {
		if !o.r.steps[k].consumes() {
			continue
		}
		if a >= len(o.arrived) || o.arrived[a] != k {
			o.r.t.Errorf("message %d arrived in place of message %d (so far %v)", i, k, o.arrived)
			return
		}
		a++
	}
}

// checkBytes compares a message with what was sent, and the RDMA Writes before
// it with what they wrote.
func (o *model) checkBytes(i int, c *via.Completion) {
	o.r.t.Helper()
	got := o.r.remote[i].b
	if o.r.steps[i].op == via.OpSend {
		got = o.r.rooms[o.r.posted[c.Descriptor]].b[:c.Length]
	}
	if int(c.Length) != len(o.want[i]) || !bytes.Equal(got, o.want[i]) {
		o.r.t.Errorf("message %d arrived with %d bytes, want %d, or with others", i, c.Length, len(o.want[i]))
	}
	for k := range i {
		if o.r.steps[k].op == via.OpRdmaWrite && !(o.r.unreliable() && o.struck(k)) && !o.inPlace(k) {
			o.r.t.Errorf("message %d arrived before the bytes of RDMA Write %d", i, k)
		}
	}
}

// finish looks at what a run leaves.
func (o *model) finish() {
	o.r.t.Helper()
	for i := range o.r.steps {
		if o.r.level == via.ReliableReception && i > o.firstBad && o.happened(i) {
			o.r.t.Errorf("step %d was carried out behind step %d, which failed", i, o.firstBad)
		}
	}
}

// happened reports whether a step left a trace at R.
func (o *model) happened(i int) bool {
	switch s := o.r.steps[i]; {
	case s.consumes():
		for _, a := range o.arrived {
			if a == i {
				return true
			}
		}
		return false
	case s.op == via.OpRdmaWrite:
		return !bytes.Equal(o.r.remote[i].b, o.before[i])
	default:
		return false
	}
}

// missing lists the steps that left no trace at R, but should have if nothing
// had struck them.
func (o *model) missing() []int {
	var out []int
	for i, s := range o.r.steps {
		if s.op != via.OpRdmaRead && (s.size > 0 || s.consumes()) && !o.happened(i) {
			out = append(out, i)
		}
	}
	return out
}
