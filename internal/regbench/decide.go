package regbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/bench"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// DecideConfig says what to compare. Zero fields take the defaults.
type DecideConfig struct {
	Sizes     []int         // bytes; 512 B to 4 MiB
	Workloads []Workload    // all but Looping
	Rounds    int           // of each cell; 15
	Turns     int           // of each mode in a round; 4
	Ops       int           // least operations of a mode in a round; 128
	Slice     time.Duration // least time of a mode in a round; 12 ms
	Warm      int           // decisions of auto before the rounds of a cell; 2048
	Policy    regcache.Policy
	Progress  func(done, total int)
}

func (c DecideConfig) withDefaults() DecideConfig {
	if c.Sizes == nil {
		for n := 512; n <= 4<<20; n *= 2 {
			c.Sizes = append(c.Sizes, n)
		}
	}
	if c.Workloads == nil {
		c.Workloads = Workloads()
	}
	if c.Rounds == 0 {
		c.Rounds = 15
	}
	if c.Turns == 0 {
		c.Turns = 4
	}
	if c.Ops == 0 {
		c.Ops = 128
	}
	if c.Slice == 0 {
		c.Slice = 12 * time.Millisecond
	}
	if c.Warm == 0 {
		c.Warm = 2048
	}
	return c
}

// Cell is one line of the comparison. Times are nanoseconds of one operation, the
// whole time of all rounds divided by their operations: misses, registrations and
// exploration are in them, and so is whatever else the machine did.
type Cell struct {
	Workload  Workload `json:"workload"`
	Direction string   `json:"direction"` // read or write
	Size      int      `json:"size"`      // bytes
	Ops       int      `json:"ops"`       // of auto, all rounds
	Bounce    float64  `json:"bounce_ns"`
	Zero      float64  `json:"zerocopy_ns"`
	Auto      float64  `json:"auto_ns"`

	// Ratio is the median, over the rounds, of the rate of auto to that of the better
	// fixed mode in the same round. Better is the mode whose median round is faster.
	Ratio float64 `json:"ratio"`

	// Total is the same of the whole times: one interruption of the machine moves it.
	Total float64 `json:"total_ratio"`
}

// Decision is what Decide measured over one provider.
type Decision struct {
	Provider    string               `json:"provider"`
	Calibration regcache.Calibration `json:"calibration"`
	Write       regcache.Boundary    `json:"write_boundary"` // bytes, at the end
	Read        regcache.Boundary    `json:"read_boundary"`
	Cells       []Cell               `json:"cells"`
	Least       float64              `json:"least"`  // ratio
	Median      float64              `json:"median"` // ratio
	LeastTotal  float64              `json:"least_total"`
}

// modes in the order in which a Cell has them.
var modes = [3]regcache.CopyMode{regcache.CopyBounce, regcache.CopyZero, regcache.CopyAuto}

// Decide compares the measured decision with both fixed ones, over a provider. Target
// and initiator have processors of their own, if there are two: where the system puts
// both on one, an operation takes four times as long, whatever the mode.
func Decide(ctx context.Context, p via.Provider, at Address, c DecideConfig) (d Decision, err error) {
	c = c.withDefaults()
	d.Provider = p.Name()
	release, err := bench.Apart()
	if err != nil {
		return d, err
	}
	defer release()
	r, err := openRig(p, at)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var ends [len(modes)]*end
	for i, m := range modes {
		e, err := r.attach(m, c.Policy, 0)
		if err != nil {
			return d, err
		}
		ends[i] = e
		defer func() { err = errors.Join(err, e.close()) }()
	}
	ops := []block.Op{block.Read, block.Write}
	total := len(c.Workloads) * len(ops) * len(c.Sizes)
	for _, w := range c.Workloads {
		for _, op := range ops {
			for _, size := range c.Sizes {
				if ctx.Err() != nil {
					return d, context.Cause(ctx)
				}
				if c.Progress != nil {
					c.Progress(len(d.Cells), total)
				}
				cell, err := compare(&ends, c, w, op, size)
				if err != nil {
					return d, fmt.Errorf("%s, %v of %d bytes: %w", w, op, size, err)
				}
				d.Cells = append(d.Cells, cell)
			}
		}
	}
	d.conclude(ends[2])
	return d, nil
}

// conclude adds what the cells say together.
func (d *Decision) conclude(auto *end) {
	var ratios, totals []float64
	for _, c := range d.Cells {
		ratios, totals = append(ratios, c.Ratio), append(totals, c.Total)
	}
	d.Least, d.Median, d.LeastTotal = slices.Min(ratios), median(ratios), slices.Min(totals)
	s := auto.device.Status().Copy
	if s.Calibration != nil {
		d.Calibration = *s.Calibration
	}
	d.Write, d.Read = s.Write, s.Read
}

// passage is how much a pass over memory registers at once, in bytes: a granule.
const passage = 1 << 20

// cycle returns the operations of a workload after which its registrations repeat, so
// that each round of a pass over memory has its share of them.
func (w Workload) cycle(size int) int {
	switch w {
	case NoReuse:
		return max(1, passage/size)
	case Mixed:
		return max(2, 2*passage/size)
	default:
		return 1
	}
}

// settling is how many operations an end runs before its turn is measured: the target
// may have gone to sleep, and the caches are another's.
const settling = 4

// compare measures a cell. The modes take turns, some in each round, so that what slows
// the machine for longer than a turn slows all of them in the same round; each time
// another is the first.
func compare(ends *[len(modes)]*end, c DecideConfig, w Workload, op block.Op, size int) (Cell, error) {
	cell := Cell{Workload: w, Direction: op.String(), Size: size}
	var next [len(modes)]func() int
	for i, e := range ends {
		next[i] = w.positions(size)
		turn := turn{op: op, size: size, least: min(2*c.Ops, c.Warm), cycle: 1}
		if modes[i] == regcache.CopyAuto {
			// A decision is about a granule at most. What is measured is what it has come
			// to: the first 1024 of a class explore more, and another workload is learned.
			turn.least = max(turn.least, c.Warm*passage/max(size, passage))
		}
		if _, err := e.take(turn, next[i]); err != nil {
			return cell, err
		}
	}
	var rounds [len(modes)][]spent
	measured := turn{op, size, (c.Ops + c.Turns - 1) / c.Turns, w.cycle(size), c.Slice / time.Duration(c.Turns)}
	for range c.Rounds {
		var round [len(modes)]spent
		for k := range c.Turns * len(ends) {
			i := (k + k/len(ends)) % len(ends)
			if _, err := ends[i].take(turn{op: op, size: size, least: settling, cycle: 1}, next[i]); err != nil {
				return cell, err
			}
			t, err := ends[i].take(measured, next[i])
			if err != nil {
				return cell, err
			}
			round[i].add(t)
		}
		for i, s := range round {
			rounds[i] = append(rounds[i], s)
		}
	}
	cell.judge(&rounds)
	return cell, nil
}

// judge concludes from the rounds, which are in the order of modes.
func (c *Cell) judge(rounds *[len(modes)][]spent) {
	var medians, totals [len(modes)]float64
	for i, list := range rounds {
		var each []float64
		var all spent
		for _, s := range list {
			each = append(each, s.each())
			all.add(s)
		}
		medians[i], totals[i] = median(each), all.each()
		c.Ops = all.ops // auto is the last
	}
	better := 0
	if medians[1] < medians[0] {
		better = 1
	}
	var ratios []float64
	for k := range rounds[2] {
		ratios = append(ratios, rounds[better][k].each()/rounds[2][k].each())
	}
	c.Bounce, c.Zero, c.Auto = totals[0], totals[1], totals[2]
	c.Ratio, c.Total = median(ratios), min(c.Bounce, c.Zero)/c.Auto
}

func median(list []float64) float64 { return quantile(list, 0.5) }

func decile(list []float64) float64 { return quantile(list, 0.1) }

func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[int(float64(len(sorted)-1)*q)]
}
