package simulation

import (
	"slices"
	"testing"
)

// TestSeedsReplayExactly: everything that happens in a run follows from its
// seed, and nothing from the runs before, whose memory it gets.
func TestSeedsReplayExactly(t *testing.T) {
	const seeds = 60
	var first [seeds]Result
	runner := newRunner(t)
	order := make([]int, seeds)
	for i := range order {
		order[i] = i
		first[i] = runner.Run(NewPlan(uint64(i+1), 300), nil)
	}
	slices.Reverse(order)
	for _, i := range order {
		if again := runner.Run(NewPlan(uint64(i+1), 300), nil); again != first[i] {
			t.Errorf("seed %d: %+v, then %+v", i+1, first[i], again)
		}
	}
	for i := range 10 {
		if alone := Run(NewPlan(uint64(i+1), 300), nil); alone != first[i] {
			t.Errorf("seed %d: %+v, and alone %+v", i+1, first[i], alone)
		}
	}
}
