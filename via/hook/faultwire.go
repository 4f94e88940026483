package hook

import (
	"math/rand/v2"

	"github.com/viablk/viablk/via"
)

// wireFaults is a plan's word about one link. The provider that carries out the
// link's works asks, and does the rest.
type wireFaults struct {
	t      *faultTap
	random *rand.Rand // of the link: others do not disturb it
	works  int
	outer  via.Faults // of a decorator around this one, or nil
}

// configure gives a link its faults.
func (t *faultTap) configure(cfg *via.LinkConfig) {
	if len(t.plan.Faults)+len(t.plan.Chances) == 0 {
		return
	}
	cfg.Faults = &wireFaults{
		t: t, random: rand.New(rand.NewPCG(t.plan.Seed, t.wires.Add(1))), outer: cfg.Faults,
	}
}

// Next decides about a work.
func (f *wireFaults) Next(w *via.Work) via.Fault {
	f.works++
	fault := f.t.plan.Faults[f.works]
	if fault == via.FaultNone {
		fault = f.draw()
	}
	if fault != via.FaultNone {
		f.t.injected.Add(1)
	}
	if f.outer != nil {
		if theirs := f.outer.Next(w); theirs != via.FaultNone {
			return theirs
		}
	}
	return fault
}

// draw draws one of the faults that have a chance, or none.
func (f *wireFaults) draw() via.Fault {
	if len(f.t.kinds) == 0 {
		return via.FaultNone
	}
	at := f.random.Float64()
	for _, kind := range f.t.kinds {
		if at -= f.t.plan.Chances[kind]; at < 0 {
			return kind
		}
	}
	return via.FaultNone
}
