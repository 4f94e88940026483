package simulation

import (
	"fmt"
	"slices"
	"strings"
)

// Reduction makes the plan of a seed smaller.
type Reduction struct {
	Requests int   // of all clients, about
	Clients  int   // the first ones; 0: all
	Without  []int // faults, by number
}

// Plan returns the smaller plan.
func (d Reduction) Plan(seed uint64) Plan {
	p := NewPlan(seed, d.Requests)
	if d.Clients > 0 {
		p.Clients = p.Clients[:min(d.Clients, len(p.Clients))]
	}
	var kept []Fault
	for i, f := range p.Faults {
		if !slices.Contains(d.Without, i) && f.Client < len(p.Clients) {
			kept = append(kept, f)
		}
	}
	p.Faults = kept
	return p
}

// String returns the arguments of a test that runs the plan.
func (d Reduction) String() string {
	text := fmt.Sprintf("-sim.requests %d", d.Requests)
	if d.Clients > 0 {
		text += fmt.Sprintf(" -sim.clients %d", d.Clients)
	}
	if len(d.Without) > 0 {
		list := strings.Trim(strings.ReplaceAll(fmt.Sprint(d.Without), " ", ","), "[]")
		text += " -sim.without " + list
	}
	return text
}

// Shrink returns the smallest plan that it finds to fail as well as that of a
// seed, and what it failed with.
func Shrink(seed uint64, requests int) (Reduction, error) {
	best := Reduction{Requests: requests}
	err := Run(best.Plan(seed), nil).Err
	try := func(d Reduction) bool {
		e := Run(d.Plan(seed), nil).Err
		if e != nil {
			best, err = d, e
		}
		return e != nil
	}
	for shrunk := true; shrunk && err != nil; {
		shrunk = false
		for i := range NewPlan(seed, requests).Faults {
			if d := best; !slices.Contains(d.Without, i) {
				d.Without = append(slices.Clone(d.Without), i)
				shrunk = try(d) || shrunk
			}
		}
		for d := best; len(best.Plan(seed).Clients) > 1; {
			d.Clients = len(best.Plan(seed).Clients) - 1
			if !try(d) {
				break
			}
			shrunk = true
		}
		for _, part := range []int{2, 4} {
			for d := best; best.Requests > 1; {
				d.Requests = best.Requests - max(best.Requests/part, 1)
				if !try(d) {
					break
				}
				shrunk = true
			}
		}
	}
	slices.Sort(best.Without)
	return best, err
}
