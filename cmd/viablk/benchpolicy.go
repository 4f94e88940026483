package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/chart"
	"github.com/viablk/viablk/cmd/viablk/internal/regbench"
	"github.com/viablk/viablk/regcache"
)

// policyResult is what "viablk bench policy" measured over a provider.
type policyResult struct {
	Provider string               `json:"provider"`
	Policies []regbench.PolicyRow `json:"policies"`
	Decision *regbench.Decision   `json:"decision,omitempty"`
}

func (a *app) benchPolicyCommand() *cobra.Command {
	var o memoryBench
	var grid bool
	var least float64
	var policy string
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Benchmark the registration cache's eviction policies and the copy decision",
		Long: `Measure the share of hits, and the time of a lease, of a registration cache that
ristretto advises, of one that a clock advises, and of none, beside a copy of the
buffer, with a budget of 32 MiB:

  reuse     a ring of at most 16 MiB
  looping   a ring a tenth larger than the budget
  zipf      1 MiB granules by Zipf's law (1.1)
  mixed     reuse and no-reuse in turn
  no-reuse  128 MiB, one buffer after the other

BEST is the cheapest of the four: where it is "copy" or "none", a cache does not
pay.

With --decide, whole reads and writes of 512 B to 4 MiB are measured with
--copy-mode auto, bounce and zerocopy in turn, for every workload but looping, in
rounds of at least 32 operations, a millisecond and whole granules of each. RATIO is
the rate of auto to that of the better fixed mode, the median of the rounds; cells
below 0.98 are visited up to five times, and judged by all rounds. TOTAL is that of
the whole times, with every registration and exploration, which one interruption of
the machine moves. With --least the command fails if a RATIO is
below.`,
		Annotations: map[string]string{moreOutputs: "markdown"},
	}
	o.register(cmd, "nothing", "ucx", "cibr")
	cmd.Flags().BoolVar(&grid, "decide", false, "measure the decision, too: four minutes for each of --charge")
	cmd.Flags().StringVar(&policy, "policy", "auto", "with --decide, keep registrations by `POLICY`, auto suits the price: auto, ristretto or clock")
	cmd.Flags().Float64Var(&least, "least", 0, "with --decide, fail if a ratio is below `RATIO`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, sizes, at, err := o.complete()
		if err != nil {
			return err
		}
		p, d := regbench.PoliciesConfig{Sizes: sizes}, regbench.DecideConfig{Sizes: sizes}
		if o.quick {
			p.Ops, d.Rounds, d.Visits, d.Warm = 100, 1, 1, 16
		}
		if !grid && (least > 0 || cmd.Flags().Changed("policy")) {
			return usage("--least and --policy are of --decide")
		}
		switch d.Policy = regcache.Policy(policy); d.Policy {
		case regcache.PolicyRistretto, regcache.PolicyClock:
		case "auto":
			d.Policy = ""
		default:
			return usage("--policy %q is not auto, ristretto or clock", policy)
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		progress := a.newProgress()
		defer progress.clear()
		var results []policyResult
		for _, x := range list {
			r := policyResult{Provider: x.name}
			p.Progress = progress.stage(x)
			if r.Policies, err = regbench.Policies(ctx, x.provider, p); err != nil {
				return err
			}
			if grid {
				d.Progress = progress.stage(x)
				decision, err := regbench.Decide(ctx, x.provider, at, d)
				if err != nil {
					return err
				}
				decision.Provider = x.name
				r.Decision = &decision
			}
			results = append(results, r)
		}
		progress.clear()
		if err := a.printPolicies(&o, results); err != nil {
			return err
		}
		return enough(results, least)
	}
	return cmd
}

// enough fails if a cell of a decision is below the least ratio.
func enough(results []policyResult, least float64) error {
	below, worst := 0, least
	for _, r := range results {
		if r.Decision == nil {
			continue
		}
		for _, c := range r.Decision.Cells {
			if c.Ratio < least {
				below, worst = below+1, min(worst, c.Ratio)
			}
		}
	}
	if below > 0 {
		return &exit{exitFailure, fmt.Errorf("%d ratios are below %g, the least is %.3f", below, least, worst)}
	}
	return nil
}

func (a *app) printPolicies(o *memoryBench, results []policyResult) error {
	if err := o.draw(results); err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(struct {
			Schema    string         `json:"schema"` // viablk.bench.policy/v1
			Version   string         `json:"version"`
			Providers []policyResult `json:"providers"`
		}{"viablk.bench.policy/v1", version().Version, results})
	}
	for _, r := range results {
		a.heading("%s: share of hits, microseconds of one use", r.Provider)
		rows := [][]string{{"WORKLOAD", "SIZE", "RISTRETTO", "CLOCK", "RISTRETTO us", "CLOCK us", "NONE us", "COPY us", "BEST"}}
		for _, x := range r.Policies {
			rows = append(rows, []string{
				string(x.Workload), shortSize(x.Size), percent(x.Ristretto), percent(x.Clock),
				us(x.RistrettoTime), us(x.ClockTime), us(x.NoneTime), us(x.CopyTime), x.Best,
			})
		}
		if err := a.printTable(rows); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
		if r.Decision != nil {
			if err := a.printDecision(r.Provider, r.Decision); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *app) printDecision(provider string, d *regbench.Decision) error {
	a.heading("%s: the decision, microseconds of one operation; least ratio %.3f, median %.3f; least of totals %.3f",
		provider, d.Least, d.Median, d.LeastTotal)
	rows := [][]string{{"WORKLOAD", "DIRECTION", "SIZE", "BOUNCE", "ZEROCOPY", "AUTO", "RATIO", "TOTAL"}}
	for _, c := range d.Cells {
		rows = append(rows, []string{
			string(c.Workload), c.Direction, shortSize(c.Size), us(c.Bounce), us(c.Zero), us(c.Auto), fmt.Sprintf("%.3f", c.Ratio), fmt.Sprintf("%.3f", c.Total),
		})
	}
	if err := a.printTable(rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nno copy at the end: write %s, read %s\n\n", boundaryText(d.Write), boundaryText(d.Read))
	return nil
}

// draw draws the shares of hits, which are those of any provider, and the
// decision over each provider where it was measured.
func (o *memoryBench) draw(results []policyResult) error {
	hits := &chart.Chart{
		Title: "share of uses that find a registration, budget of 32 MiB",
		X:     "size (bytes)", Y: "hits (%)", LogX: true,
	}
	for _, x := range results[0].Policies {
		hits.Add(fmt.Sprintf("%s, ristretto", x.Workload), float64(x.Size), 100*x.Ristretto)
		hits.Add(fmt.Sprintf("%s, clock", x.Workload), float64(x.Size), 100*x.Clock)
	}
	if err := o.save(hits, "hits"); err != nil {
		return err
	}
	for i, r := range results {
		if r.Decision == nil {
			continue
		}
		c := &chart.Chart{
			Title: "rate of auto to the better fixed mode, " + r.Provider,
			X:     "size (bytes)", Y: "ratio", LogX: true,
			References: []chart.Reference{{Label: "0.95", Y: 0.95}},
		}
		for _, x := range r.Decision.Cells {
			c.Add(fmt.Sprintf("%s, %s", x.Workload, x.Direction), float64(x.Size), x.Ratio)
		}
		if err := o.save(c, fmt.Sprintf("decision-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}
