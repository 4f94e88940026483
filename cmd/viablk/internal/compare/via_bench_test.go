package compare

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// viaRow is a row of "viablk bench via", as far as targets look at it. Times
// are nanoseconds.
type viaRow struct {
	Mode  string  `json:"mode"`
	Size  int     `json:"size"`
	Wait  string  `json:"wait"`
	VIs   int     `json:"vis"`
	Batch int     `json:"batch"`
	Rate  float64 `json:"per_second"`
	Time  struct {
		Median float64 `json:"median"`
	} `json:"time_ns"`
	Latency struct {
		P50 float64 `json:"p50_ns"`
	} `json:"latency"`
	Baseline struct {
		Name  string `json:"name"`
		Ratio struct {
			Median float64 `json:"median"`
			Least  float64 `json:"least"`
			Most   float64 `json:"most"`
		} `json:"ratio"`
	} `json:"baseline"`
	PerOp struct {
		Allocations float64 `json:"allocations"`
		Records     float64 `json:"records"`
		AgentCalls  float64 `json:"agent_calls"`
	} `json:"per_op"`
}

// viaTarget is what VIA over shared memory is to reach in rows of a
// measurement.
type viaTarget struct {
	name   string
	bound  float64
	atMost bool // else at least
	digits int  // behind the point
	rows   func(r *viaRow) bool
	figure func(r *viaRow) float64
}

// met reports whether a figure, as it is printed, reaches the target.
func (g *viaTarget) met(figure float64) bool {
	f, _ := strconv.ParseFloat(g.text(figure), 64) // it was just formatted
	if g.atMost {
		return f <= g.bound
	}
	return f >= g.bound
}

func (g *viaTarget) text(figure float64) string {
	return strconv.FormatFloat(figure, 'f', g.digits, 64)
}

// viaMeasurement is a run of the program and what it is to show.
type viaMeasurement struct {
	args    []string
	targets []viaTarget
}

// viaMeasurements are the targets of VIA itself, with the number of VIs that
// are compared with one.
func viaMeasurements(many int) []viaMeasurement {
	ratio := func(r *viaRow) float64 { return r.Baseline.Ratio.Median }
	is := func(mode, wait string, least, most int) func(*viaRow) bool {
		return func(r *viaRow) bool {
			return strings.HasPrefix(r.Mode, mode) && r.Wait == wait && r.Size >= least && r.Size <= most
		}
	}
	one := func(r *viaRow) bool { return r.VIs == 1 }
	others := strconv.Itoa(many)
	return []viaMeasurement{
		{[]string{"--mode", "pingpong", "--sizes", "64", "--wait", "poll,sleep"}, []viaTarget{
			{"one way of 64 B, polling: P50, µs", 0.5, true, 3, is("pingpong", "poll", 64, 64), func(r *viaRow) float64 { return r.Latency.P50 / 1e3 }},
			{"one way of 64 B, sleeping: ratio to bare eventfds", 1.3, true, 2, is("pingpong", "sleep", 64, 64), ratio},
		}},
		{[]string{"--mode", "rdma-write,rdma-read", "--sizes", "4K,64K,128K,256K,512K,1M,2M,4M", "--wait", "poll"}, []viaTarget{
			{"RDMA of 4 KiB: ratio to copy", 1.3, true, 2, is("rdma", "poll", 4<<10, 4<<10), ratio},
			{"RDMA from 64 KiB on: ratio to copy", 1.1, true, 2, is("rdma", "poll", 64<<10, 4<<20), ratio},
		}},
		{[]string{"--mode", "post-rate", "--many", others}, []viaTarget{
			{"posts of 64 B on one VI, with the polls of their completions: millions/s", 4, false, 2, one, func(r *viaRow) float64 { return r.Rate / 1e6 }},
			{"allocations for a post", 0, true, 2, one, func(r *viaRow) float64 { return r.PerOp.Allocations }},
			{"ring writes for a post", 1, true, 2, one, func(r *viaRow) float64 { return r.PerOp.Records }},
			{"calls to the kernel agent", 0, true, 0, one, func(r *viaRow) float64 { return r.PerOp.AgentCalls }},
		}},
		{[]string{"--mode", "pollscale", "--many", others}, []viaTarget{
			{"poll of a completion, " + others + " VIs: ratio to one", 1.5, true, 2, func(r *viaRow) bool { return r.VIs == many }, ratio},
		}},
	}
}

// viaTargets measures and returns a table: target, measured, met.
func viaTargets(t testing.TB, many int, more ...string) string {
	t.Helper()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "target\t\tmeasured\tleast..most\tmet")
	for _, m := range viaMeasurements(many) {
		rows := runBenchVia(t, slices.Concat(m.args, more)...)
		for _, g := range m.targets {
			found := 0
			for i := range rows {
				r := &rows[i]
				if !g.rows(r) {
					continue
				}
				found++
				if r.Time.Median <= 0 || r.Mode == "pingpong" && r.Latency.P50 <= 0 {
					t.Fatalf("%s %d B, %s: no time was measured", r.Mode, r.Size, r.Wait)
				}
				sign, met, spread := "≥", "no", ""
				if g.atMost {
					sign = "≤"
				}
				figure := g.figure(r)
				if g.met(figure) {
					met = "yes"
				}
				if b := r.Baseline; strings.Contains(g.name, "ratio") {
					if b.Name == "" {
						t.Fatalf("%s %d B, %s: nothing was measured beside it", r.Mode, r.Size, r.Wait)
					}
					spread = fmt.Sprintf("%.2f..%.2f", b.Ratio.Least, b.Ratio.Most)
				}
				fmt.Fprintf(w, "%s\t%s %g\t%s\t%s\t%s\t(%s %d B, %s, %d VIs, batch %d)\n",
					g.name, sign, g.bound, g.text(figure), spread, met, r.Mode, r.Size, r.Wait, r.VIs, r.Batch)
			}
			if found == 0 {
				t.Fatalf("no row of %q shows %q", m.args, g.name)
			}
		}
	}
	_ = w.Flush() // into memory
	return out.String()
}

// runBenchVia measures between two processes of this host.
func runBenchVia(t testing.TB, args ...string) []viaRow {
	t.Helper()
	c := testbed.StartPath(t, testbed.Environment(t), testbed.PlainProgram(t), append([]string{"bench", "via", "--provider", "shm", "-o", "json"}, args...)...)
	if code := c.Wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("%s: exit code %d\n%s", c, code, c.Output())
	}
	var report struct {
		Rows []viaRow `json:"rows"`
	}
	testbed.Must(t, json.NewDecoder(strings.NewReader(c.Stdout.String())).Decode(&report))
	return report.Rows
}

// TestViaTargets prints what VIA over shared memory reaches of its targets; see
// docs/benchmarking.md. Whether they are met is for a reader who knows the
// machine: the test fails if something cannot be measured.
func TestViaTargets(t *testing.T) {
	testbed.OnDemand(t)
	t.Log("\n" + viaTargets(t, 1000, "--rounds", "5"))
}

// TestViaTargetsWork keeps the measurement alive where it does not run: every
// target has a figure, and what does not depend on the machine is met.
func TestViaTargetsWork(t *testing.T) {
	table := viaTargets(t, 4, "--rounds", "1", "--count", "64")
	for _, line := range []string{"ring writes for a post", "calls to the kernel agent"} {
		_, rest, found := strings.Cut(table, "\n"+line)
		row, _, _ := strings.Cut(rest, "\n")
		if !found || !strings.Contains(row, " yes ") {
			t.Errorf("%q is not met:\n%s", line, table)
		}
	}
}

// A target is met by the figure that is printed.
func TestTargetsAreMet(t *testing.T) {
	for _, c := range []struct {
		target viaTarget
		figure float64
		met    bool
	}{
		{viaTarget{bound: 1.3, atMost: true, digits: 2}, 1.304, true},
		{viaTarget{bound: 1.3, atMost: true, digits: 2}, 1.306, false},
		{viaTarget{bound: 4, digits: 2}, 4, true},
		{viaTarget{bound: 4, digits: 2}, 3.99, false},
		{viaTarget{bound: 0, atMost: true, digits: 2}, 0.004, true},
		{viaTarget{bound: 0, atMost: true, digits: 2}, 1, false},
	} {
		if got := c.target.met(c.figure); got != c.met {
			t.Errorf("%v against %+v: met is %v", c.figure, c.target.bound, got)
		}
	}
}
