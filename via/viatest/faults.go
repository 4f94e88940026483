package viatest

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

var faultCases = []kitCase{
	{"DropAnywhere", Functional, "a message or an RDMA operation that is lost is missing alone, or costs a reliable connection", anyLevel, NeedsFaults, anywhere(via.FaultDrop, missingOrBroken)},
	{"DuplicateAnywhere", Functional, "what comes twice is delivered once, and costs nothing", anyLevel, NeedsFaults, anywhere(via.FaultDuplicate, absorbed)},
	{"ReorderAnywhere", Functional, "what comes late is delivered in its place or not at all at reliable levels, and once at most", anyLevel, NeedsFaults, anywhere(via.FaultReorder, repairedOrBroken)},
	{"CorruptAnywhere", Functional, "what is corrupt is never delivered as good, and costs a reliable connection", anyLevel, NeedsFaults, anywhere(via.FaultCorrupt, missingOrBroken)},
	{"TruncateAnywhere", Functional, "what has lost its end is never delivered as good, and costs a reliable connection", anyLevel, NeedsFaults, anywhere(via.FaultTruncate, missingOrBroken)},
	{"CutAnywhere", Functional, "a cut in the middle of an operation breaks both ends, and nothing happens afterwards", anyLevel, NeedsFaults, anywhere(via.FaultCut, lost)},
	{"KilledAnywhere", Functional, "a link that is cut at any post or completion breaks both ends, and nothing happens afterwards", anyLevel, 0, killedAnywhere},
	{"RandomFaults", Functional, "whatever the fabric does and how often, nothing is delivered twice, spoiled or out of order", anyLevel, NeedsFaults, randomFaults},
	{"FaultsSpareOthers", Functional, "a fault of one connection is nothing to another on the same completion queue", anyLevel, NeedsFaults, faultsAffectOneLink},
}

// under runs a part of a case on a fabric of its own that misbehaves by a plan.
func (e *env) under(name string, plan hook.Plan, do func(e *env, fault *hook.FaultProvider)) {
	e.t.(*testing.T).Run(name, func(t *testing.T) {
		var fault *hook.FaultProvider
		inner := newEnv(t, e.open, func(p via.Provider) via.Provider {
			fault = hook.Fault(p, plan)
			return fault
		}, e.level)
		do(inner, fault)
	})
}

// anywhere strikes each step of the workload one by one, and compares what came
// of it with the rule of the fault.
func anywhere(f via.Fault, rule func(r *run, s step)) func(e *env) {
	return func(e *env) {
		together(len(script), func(i int) {
			plan := hook.Plan{Faults: map[int]via.Fault{i + 1: f}}
			e.under(fmt.Sprint(i+1), plan, func(e *env, fault *hook.FaultProvider) {
				r := newRun(e, i)
				r.carryOut()
				r.model.finish()
				if n := fault.Injected(); n != 1 {
					e.t.Errorf("%d faults struck, want 1", n)
				}
				rule(r, r.steps[i])
				if !r.broken() {
					r.whole(i)
				}
			})
		})
	}
}

// whole checks that a connection that survived carried out all but one step.
func (r *run) whole(but int) {
	r.t.Helper()
	r.state(r.client, via.StateConnected)
	r.state(r.server, via.StateConnected)
	for _, i := range r.model.missing() {
		if i != but {
			r.t.Errorf("step %d is missing, although nothing struck it", i)
		}
	}
	for i, d := range r.descs {
		if st := r.client.seen[d].Status; st.Failed() {
			r.t.Errorf("step %d completed with %v on a connection that survived", i, st)
		}
	}
}

// missingOrBroken: the step is missing, or the connection is gone.
func missingOrBroken(r *run, s step) {
	r.t.Helper()
	switch missing := r.model.missing(); {
	case s.size == 0 && !r.broken(): // there is nothing of it to spoil
	case r.unreliable() && r.broken():
		r.t.Errorf("an unreliable connection broke")
	case !r.unreliable() && !r.broken():
		r.t.Errorf("a reliable connection survived the loss of a step")
	case r.unreliable() && s.consumes() && (len(missing) != 1 || missing[0] != r.fault):
		r.t.Errorf("steps %v are missing, want step %d", missing, r.fault)
	}
}

// absorbed: nothing is missing, nothing is twice.
func absorbed(r *run, s step) {
	r.t.Helper()
	if r.broken() {
		r.t.Errorf("a duplicate broke the connection")
		return
	}
	if missing := r.model.missing(); len(missing) != 0 {
		r.t.Errorf("steps %v are missing", missing)
	}
	// A fabric that repeats what it believes lost may have duplicates of its
	// own.
	if n := r.server.vi.Stats().Dropped; n < 1 && s.op == via.OpSend {
		r.t.Errorf("R counts %d dropped messages, want the duplicate", n)
	}
}

// repairedOrBroken: the model has looked at the order.
func repairedOrBroken(r *run, _ step) {
	r.t.Helper()
	switch missing := r.model.missing(); {
	case r.unreliable() && r.broken():
		r.t.Errorf("an unreliable connection broke")
	case !r.unreliable() && !r.broken() && len(missing) != 0:
		r.t.Errorf("steps %v are missing on a reliable connection", missing)
	}
}

// lost: both ends hear of the loss.
func lost(r *run, _ step) {
	r.t.Helper()
	if !r.broken() {
		r.t.Errorf("the connection survived a cut")
	}
	r.heardLoss()
}

// heardLoss checks that each end was told of a loss, by one callback or by a
// descriptor.
func (r *run) heardLoss() {
	r.t.Helper()
	for _, x := range []*end{r.client, r.server} {
		told := false
		for _, c := range x.done {
			bits := c.Status & via.StatusErrorMask
			told = told || bits != 0 && bits != via.StatusFlushed
		}
		if n := len(x.errors()); n > 1 || n == 0 && !told {
			r.t.Errorf("%s: %d callbacks of a lost connection; %v", x.name, n, x)
		}
	}
}

// killedAnywhere cuts the link at every step that the workload has.
func killedAnywhere(e *env) {
	const limit = 1000
	for n := 1; n < limit && !e.t.Failed(); n++ {
		killed := false
		e.under(fmt.Sprint(n), hook.Plan{SeverAt: n}, func(e *env, fault *hook.FaultProvider) {
			r := newRun(e, unplanned)
			r.carryOut()
			r.model.finish()
			if killed = fault.Injected() != 0; killed {
				lost(r, step{})
			} else {
				r.whole(unplanned)
			}
		})
		if !killed && n > len(script) {
			return // the workload has no more steps
		}
	}
	e.t.Errorf("the workload has no end within %d steps", limit)
}

func randomFaults(e *env) {
	together(20, func(seed int) {
		plan := hook.Plan{Seed: uint64(seed), HoldCompletions: seed % 4, Chances: map[via.Fault]float64{
			via.FaultDrop: 0.04, via.FaultDuplicate: 0.08, via.FaultReorder: 0.06,
			via.FaultCorrupt: 0.04, via.FaultTruncate: 0.04, via.FaultCut: 0.01,
		}}
		if seed%2 == 1 {
			plan.RefusePosts = 0.3
		}
		e.under(fmt.Sprint(seed), plan, func(e *env, _ *hook.FaultProvider) {
			r := newRun(e, unplanned)
			r.carryOut()
			r.model.finish()
		})
	})
}

func faultsAffectOneLink(e *env) {
	// The fourth operation of each link is lost; only one link has so many.
	e.under("drop", hook.Plan{Faults: map[int]via.Fault{4: via.FaultDrop}}, func(e *env, fault *hook.FaultProvider) {
		e.connect()
		good := [2]*via.VI{e.client.vi, e.server.vi}
		e.passes(e.client, e.server)
		e.idle()
		e.join(e.client.vi, e.server.vi)
		for range 5 {
			e.server.recv()
			e.client.send()
		}
		e.untilInjected(fault)
		if !e.unreliable() {
			e.breaks(e.client, e.server)
		}
		e.client.vi, e.server.vi = good[0], good[1]
		e.passes(e.client, e.server)
		e.passes(e.server, e.client)
	})
}

// untilInjected waits until a fault has struck.
func (e *env) untilInjected(fault *hook.FaultProvider) {
	e.t.Helper()
	e.until("a fault to strike", func() bool { return fault.Injected() != 0 })
}
