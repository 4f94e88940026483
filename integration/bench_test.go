package integration

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cell is one kind of load.
type cell struct {
	op, size string
	depth    int
}

func (c cell) String() string { return fmt.Sprintf("%s %s %d", c.op, c.size, c.depth) }

// cells are the comparison's kinds of load, in the form of VIABLK_BENCH_CELLS.
const cells = "randread 4k 1;randwrite 4k 1;randread 4k 32;randwrite 4k 32;read 128k 16;write 128k 16;read 1m 8"

// parseCells reads "OP SIZE DEPTH;…".
func parseCells(text string) ([]cell, error) {
	var list []cell
	for part := range strings.SplitSeq(text, ";") {
		var c cell
		if n, err := fmt.Sscan(part, &c.op, &c.size, &c.depth); n != 3 {
			return nil, fmt.Errorf("cell %q is not OP SIZE DEPTH: %w", part, err)
		}
		list = append(list, c)
	}
	return list, nil
}

// comparison is a set of servers that take turns under the same load.
type comparison struct {
	names   []string // the last one is the control
	uris    []string
	rounds  int
	runtime time.Duration // of a cell, server and round
	ramp    time.Duration // before it, not measured
	size    string        // of the part of the disk in use
}

// figure is a cell's result for one server.
type figure struct {
	iops, latency []float64 // a value for each round; latency in µs
}

// startComparison starts the chain, the plain server and the control, each with
// a memory disk that was written once: a control that never saw a write answers
// reads without memory.
func startComparison(t testing.TB, size string) *comparison {
	t.Helper()
	requires(t, "nbdkit")
	d := disk{"disk", "memory:" + size}
	b := &comparison{names: []string{"chain", "plain", "nbdkit"}, size: size}
	b.uris = append(b.uris, chainWay.serve(t, plain(t), d).uri, ways[0].serve(t, plain(t), d).uri)
	socket := filepath.Join(folder(t), "k")
	startTool(t, "nbdkit", "-f", "-U", socket, "memory", size)
	waitForSocket(t, socket)
	b.uris = append(b.uris, "nbd+unix:///?socket="+socket)
	for _, uri := range b.uris {
		fio(t, uri, "--rw=write", "--bs=1m", "--iodepth=8", "--size="+size)
	}
	return b
}

// measure runs a cell. The servers take turns and each round begins with another
// one, so that a machine whose speed drifts favours none of them.
func (b *comparison) measure(t testing.TB, c cell) []figure {
	t.Helper()
	figures := make([]figure, len(b.uris))
	for round := range b.rounds {
		for i := range b.uris {
			i = (i + round) % len(b.uris)
			job := fio(t, b.uris[i], "--rw="+c.op, "--bs="+c.size, fmt.Sprintf("--iodepth=%d", c.depth),
				"--size="+b.size, "--time_based", fmt.Sprintf("--runtime=%dms", b.runtime.Milliseconds()),
				fmt.Sprintf("--ramp_time=%dms", b.ramp.Milliseconds()))[0]
			side := job.Read
			if job.Write.IOs > 0 {
				side = job.Write
			}
			figures[i].iops = append(figures[i].iops, side.IOPS)
			figures[i].latency = append(figures[i].latency, side.Clock.Mean/1e3)
		}
	}
	return figures
}

// ratios returns a/b round by round, sorted.
func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range a {
		r = append(r, a[i]/b[i])
	}
	slices.Sort(r)
	return r
}

// median returns the middle of values, or the mean of the two there.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// compare measures cells and logs a table. It returns the worst ratio to the
// control of each server.
func (b *comparison) compare(t testing.TB, list []cell) (worst []float64) {
	t.Helper()
	control := len(b.uris) - 1
	head := fmt.Sprintf("%-18s", "cell")
	for _, name := range b.names {
		head += fmt.Sprintf(" %9s IOPS %8s", name, "µs")
	}
	for _, name := range b.names[:control] {
		head += fmt.Sprintf("  %s/%s (least..most)", name, b.names[control])
		worst = append(worst, math.Inf(1))
	}
	t.Log(head)
	for _, c := range list {
		figures := b.measure(t, c)
		row := fmt.Sprintf("%-18s", c)
		for _, f := range figures {
			row += fmt.Sprintf(" %14.0f %8.1f", median(f.iops), median(f.latency))
		}
		for i, f := range figures[:control] {
			r := ratios(f.iops, figures[control].iops)
			worst[i] = min(worst[i], median(r))
			row += fmt.Sprintf("  %12.2f (%.2f..%.2f)", median(r), r[0], r[len(r)-1])
		}
		t.Log(row)
	}
	return worst
}

// TestCompareWithNbdkit is the benchmark of the whole; see docs/benchmarking.md.
// It takes minutes and a quiet machine, so it runs on demand.
func TestCompareWithNbdkit(t *testing.T) {
	if os.Getenv("VIABLK_BENCH") != "1" {
		t.Skip("a benchmark: VIABLK_BENCH=1 runs it")
	}
	list, err := parseCells(setting("VIABLK_BENCH_CELLS", cells))
	must(t, err)
	rounds, err := strconv.Atoi(setting("VIABLK_BENCH_ROUNDS", "5"))
	must(t, err)
	runtimeOfCell, err := time.ParseDuration(setting("VIABLK_BENCH_TIME", "2s"))
	must(t, err)
	least, err := strconv.ParseFloat(setting("VIABLK_BENCH_LEAST", "0"), 64)
	must(t, err)
	b := startComparison(t, "1G")
	b.rounds, b.runtime, b.ramp = rounds, runtimeOfCell, 500*time.Millisecond
	t.Logf("%d processors, %s, %s", runtime.NumCPU(),
		strings.TrimSpace(run(t, "fio", "--version")), strings.TrimSpace(run(t, "nbdkit", "--version")))
	for i, worst := range b.compare(t, list) {
		t.Logf("worst cell of %s: %.2f", b.names[i], worst)
		if worst < least {
			t.Errorf("%s reaches %.2f of %s in its worst cell, less than %.2f", b.names[i], worst, b.names[len(b.names)-1], least)
		}
	}
}

// setting returns a variable of the environment.
func setting(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}

// TestComparisonWorks keeps the benchmark alive where it does not run.
func TestComparisonWorks(t *testing.T) {
	b := startComparison(t, "16M")
	b.rounds, b.runtime = 1, 100*time.Millisecond
	for _, w := range b.compare(t, []cell{{"randread", "4k", 4}, {"write", "128k", 2}}) {
		if !(w > 0) || math.IsInf(w, 0) {
			t.Errorf("ratio %v", w)
		}
	}
}

func TestMedianOfRatios(t *testing.T) {
	// The control slows down from round to round; the ratio does not care.
	got := ratios([]float64{200, 90, 40, 30}, []float64{100, 50, 20, 10})
	if want := []float64{1.8, 2, 2, 3}; !slices.Equal(got, want) || median(got) != 2 {
		t.Errorf("ratios %v, median %v", got, median(got))
	}
	if m := median([]float64{9, 1, 5}); m != 5 {
		t.Errorf("median %v, not 5", m)
	}
}

func TestParseCells(t *testing.T) {
	list, err := parseCells(cells)
	if err != nil || len(list) != 7 || list[6] != (cell{"read", "1m", 8}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", "read 4k", "read 4k deep", ";"} {
		if list, err := parseCells(bad); err == nil {
			t.Errorf("%q: %v", bad, list)
		}
	}
}
