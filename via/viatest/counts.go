package viatest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/viablk/viablk/via"
)

// counts are the totals of a run of the kit.
type counts struct {
	provider string
	cases    [Full + 1]map[string]bool // names, by level
	runs     [Full + 1]int
	at       map[via.ReliabilityLevel]int // runs
	cells    int                          // of the error matrix
	skipped  int

	mu sync.Mutex // of skipped: parts of a case run at the same time
}

// skip counts a run or a part of one that is skipped.
func (y *counts) skip() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.skipped++
}

// ran counts a run of a case, skipped or not.
func (y *counts) ran(name string, level Level, reliability via.ReliabilityLevel) {
	if y.cases[level] == nil {
		y.cases[level] = make(map[string]bool)
	}
	if y.at == nil {
		y.at = make(map[via.ReliabilityLevel]int)
	}
	y.cases[level][name] = true
	y.runs[level]++
	y.at[reliability]++
}

// result sums up.
func (y *counts) result() Result {
	r := Result{Cells: y.cells, Skipped: y.skipped}
	for _, runs := range y.runs {
		r.Cases += runs
	}
	return r
}

// String is a line such as
//
//	viatest shm: early adopter 81 cases (243 runs), functional 69 (190), ...;
//	unreliable 150 runs, delivery 163, ...; matrix 51 cells; 0 skipped
//
// without the line break.
func (y *counts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "viatest %s:", y.provider)
	words := [2]string{" cases", " runs"}
	for level := EarlyAdopter; level <= Full; level++ {
		fmt.Fprintf(&b, " %v %d%s (%d%s),", level, len(y.cases[level]), words[0], y.runs[level], words[1])
		words = [2]string{}
	}
	out := strings.TrimSuffix(b.String(), ",") + ";"
	unit := " runs"
	for _, l := range levels {
		if y.at[l] != 0 {
			out += fmt.Sprintf(" %s %d%s,", levelName(l), y.at[l], unit)
			unit = ""
		}
	}
	return fmt.Sprintf("%s; matrix %d cells; %d skipped", strings.TrimSuffix(out, ","), y.cells, y.skipped)
}
