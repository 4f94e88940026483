package regbench

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
)

// contest is what a cell of a decision is measured by: rounds in which each
// mode is measured once.
//
// A load that slows a machine for longer than a round slows all modes in it, so
// modes are compared within rounds, and rounds are as short as the operations
// allow. A cause that slows one of them for seconds, such as where its threads
// sleep, is not in one visit more than in the next: a cell in doubt is visited
// again, and judged by the rounds of all visits.
type contest struct {
	workload Workload
	op       block.Op
	size     int // bytes
	next     [len(modes)]func() int
	rounds   [len(modes)][]spent // as long as each other
}

func newContest(w Workload, op block.Op, size int) *contest {
	k := &contest{workload: w, op: op, size: size}
	for i := range k.next {
		k.next[i] = w.positions(size)
	}
	return k
}

// leadOperations is how long an end runs before it is measured, in operations
// and nanoseconds: its target may have gone to sleep, that of the end before
// may still busy-poll, and the caches are another's.
const (
	leadOperations = 4
	leadTime       = 250 * time.Microsecond
)

// orders are those in which the modes are measured, one round after the
// other: what a mode leaves behind, such as registrations that are ended later,
// comes before each other as often. A round begins with the mode that ended the
// one before.
var orders = [...][len(modes)]int{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}}

// visit measures rounds, in which the modes take turns.
func (k *contest) visit(ends *[len(modes)]*end, c DecideConfig) error {
	for i, e := range ends {
		round := round{op: k.op, size: k.size, least: min(8*c.Ops, c.Warm), cycle: 1}
		if modes[i] == regcache.CopyAuto {
			// A decision is about a granule at most. The measurement is what
			// it has come to: the first 1024 of a class explore more, and
			// another workload is learned.
			round.least = max(round.least, c.Warm*passage/max(k.size, passage))
		}
		if _, err := e.lease(round, k.next[i]); err != nil {
			return err
		}
	}
	warmup := round{k.op, k.size, leadOperations, 1, leadTime}
	measured := round{k.op, k.size, c.Ops, k.workload.cycle(k.size), c.Slice}
	begin := time.Now()
	for n := 0; n < c.Rounds && (n < (c.Rounds+9)/10 || time.Since(begin) < c.Visit); n++ {
		for _, i := range orders[n%len(orders)] {
			if _, err := ends[i].lease(warmup, k.next[i]); err != nil {
				return err
			}
			t, err := ends[i].lease(measured, k.next[i])
			if err != nil {
				return err
			}
			k.rounds[i] = append(k.rounds[i], t)
		}
	}
	return nil
}

// evaluate concludes from the rounds so far.
func (k *contest) evaluate() Cell {
	var each, ratios [len(modes)][]float64 // ratios to auto, which is the last
	var all [len(modes)]spent
	for i, list := range k.rounds {
		for n, s := range list {
			each[i] = append(each[i], s.each())
			ratios[i] = append(ratios[i], s.each()/k.rounds[len(modes)-1][n].each())
			all[i].add(s)
		}
	}
	better := 0
	if median(each[1]) < median(each[0]) {
		better = 1
	}
	c := Cell{Workload: k.workload, Direction: k.op.String(), Size: k.size, Ops: all[2].ops, Rounds: len(each[2])}
	c.Bounce, c.Zero, c.Auto = all[0].each(), all[1].each(), all[2].each()
	c.Ratio, c.Total = median(ratios[better]), min(c.Bounce, c.Zero)/c.Auto
	return c
}
