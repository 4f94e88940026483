package regbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// DecideConfig says what to compare. Zero fields take the defaults.
type DecideConfig struct {
	Sizes     []int         // bytes; 512 B to 4 MiB
	Workloads []Workload    // all but Looping
	Rounds    int           // most of a visit to a cell; 250
	Visit     time.Duration // a visit ends after it, when it had a tenth of its rounds; 800 ms
	Visits    int           // most to a cell; 5
	Doubt     float64       // a cell whose ratio is below is visited again; 0.98
	Ops       int           // least operations of a mode in a round; 32
	Slice     time.Duration // least time of a mode in a round; 1 ms
	Warm      int           // decisions of auto before the rounds of a visit; 2048
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
	c.Rounds = cmp.Or(c.Rounds, 250)
	c.Visit = cmp.Or(c.Visit, 800*time.Millisecond)
	c.Visits = cmp.Or(c.Visits, 5)
	c.Doubt = cmp.Or(c.Doubt, 0.98)
	c.Ops = cmp.Or(c.Ops, 32)
	c.Slice = cmp.Or(c.Slice, time.Millisecond)
	c.Warm = cmp.Or(c.Warm, 2048)
	return c
}

// Cell is one line of the comparison. Times are nanoseconds of one operation,
// the whole time of all rounds divided by their operations: misses,
// registrations and exploration are in them, and so is whatever else the
// machine did.
type Cell struct {
	Workload  Workload `json:"workload"`
	Direction string   `json:"direction"` // read or write
	Size      int      `json:"size"`      // bytes
	Ops       int      `json:"ops"`       // of auto, all rounds
	Bounce    float64  `json:"bounce_ns"`
	Zero      float64  `json:"zerocopy_ns"`
	Auto      float64  `json:"auto_ns"`

	// Rounds is in how many each mode was measured, all visits together.
	Rounds int `json:"rounds"`

	// Ratio is the median, over the rounds, of the rate of auto to that of the
	// better fixed mode in the same round. Better is the mode whose median is.
	Ratio float64 `json:"ratio"`

	// Total is the same of the whole times: one interruption of the machine
	// moves it.
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

// Decide compares the measured decision with both fixed ones, over a provider.
// Target and initiator have processors of their own, if there are two: where
// the system puts both on one, an operation takes four times as long, whatever
// the mode.
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
	var contests []*contest
	for _, w := range c.Workloads {
		for _, op := range []block.Op{block.Read, block.Write} {
			for _, size := range c.Sizes {
				contests = append(contests, newContest(w, op, size))
			}
		}
	}
	for visit := range c.Visits {
		for i, k := range contests {
			if ctx.Err() != nil {
				return d, context.Cause(ctx)
			}
			if visit > 0 && k.evaluate().Ratio >= c.Doubt {
				continue
			}
			if c.Progress != nil {
				c.Progress(visit*len(contests)+i, c.Visits*len(contests))
			}
			if err := k.visit(&ends, c); err != nil {
				return d, fmt.Errorf("%s, %v of %d bytes: %w", k.workload, k.op, k.size, err)
			}
		}
	}
	for _, k := range contests {
		d.Cells = append(d.Cells, k.evaluate())
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

func median(list []float64) float64 { return quantile(list, 0.5) }

func decile(list []float64) float64 { return quantile(list, 0.1) }

func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[int(float64(len(sorted)-1)*q)]
}
