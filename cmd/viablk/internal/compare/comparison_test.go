package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// cell is one kind of load.
type cell struct {
	op, size string
	depth    int
	rate     int // requests a second of a connection; 0: as many as there can be
	jobs     int // connections; 0: those of the comparison
}

func (c cell) String() string {
	text := fmt.Sprintf("%s %s %d", c.op, c.size, c.depth)
	if c.rate > 0 {
		text += fmt.Sprintf(" at %d/s", c.rate)
	}
	return text
}

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

// contender is a server in a comparison.
type contender struct {
	name, uri string
	processes []int   // that the disk is served by
	rest      float64 // of a processor, without requests: it counts for none
}

// processorTime is what the server has used.
func (c *contender) processorTime(t testing.TB) (sum time.Duration) {
	t.Helper()
	for _, pid := range c.processes {
		sum += testbed.ProcessorTime(t, pid)
	}
	return sum
}

// comparison is a set of servers that take turns under the same load.
type comparison struct {
	ours     []contender
	controls []contender
	client   testbed.FioClient
	jobs     int           // connections, each of a job of its own; 0 means 1
	rounds   int           // of each cell
	runtime  time.Duration // of a cell, server and round
	ramp     time.Duration // before it, not measured
	size     string        // of the part of the disk in use
}

// all are ours and the controls.
func (b *comparison) all() []contender { return slices.Concat(b.ours, b.controls) }

// fill writes each disk once: a control that never saw a write answers reads
// without memory. Then it reads each once: in a virtual machine the hypervisor
// may map a page for a server when that first reads it, which takes longer than
// to send it.
func (b *comparison) fill(t testing.TB) {
	t.Helper()
	for _, c := range b.all() {
		for _, op := range []string{"write", "read"} {
			b.client.Run(t, c.uri, "--rw="+op, "--bs=1m", "--iodepth=8", "--size="+b.size)
		}
	}
}

// figure is a cell's result for one server.
type figure struct {
	Server  string    `json:"server"`
	IOPS    []float64 `json:"iops"`       // a value for each round
	Latency []float64 `json:"latency_us"` // likewise, means
	Median  []float64 `json:"p50_us"`     // likewise
	CPU     []float64 `json:"cpu_us"`     // likewise, of a request; none with a ramp
	Load    []float64 `json:"load"`       // likewise, the machine's over the last minute
}

// add adds a round.
func (f *figure) add(v visit) {
	f.IOPS, f.Latency, f.Median = append(f.IOPS, v.iops), append(f.Latency, v.mean), append(f.Median, v.median)
	f.Load = append(f.Load, v.load)
	if v.cpu > 0 {
		f.CPU = append(f.CPU, v.cpu)
	}
}

// visit is what a server did in a round of a cell: times are microseconds.
type visit struct {
	iops, mean, median, cpu, load float64
}

// ratio compares two servers round by round, in IOPS. Of the costs it has the
// median alone.
type ratio struct {
	Server  string  `json:"server"`
	Control string  `json:"control"`
	Median  float64 `json:"median"`
	Least   float64 `json:"least"`
	Most    float64 `json:"most"`
	CPU     float64 `json:"cpu,omitempty"` // processor time of a request; 0: unknown
	P50     float64 `json:"p50,omitempty"` // latency
}

// compareFigures compares two servers.
func compareFigures(server, control *figure) ratio {
	r := ratios(server.IOPS, control.IOPS)
	q := ratio{Server: server.Server, Control: control.Server, Median: median(r), Least: r[0], Most: r[len(r)-1]}
	if len(server.CPU) == len(r) && len(control.CPU) == len(r) {
		q.CPU = median(ratios(server.CPU, control.CPU))
	}
	q.P50 = median(ratios(server.Median, control.Median))
	return q
}

// costs is the ratio of the costs as text.
func (r ratio) costs() string {
	text := fmt.Sprintf("p50 %.2f", r.P50)
	if r.CPU > 0 {
		text = fmt.Sprintf("CPU %.2f, %s", r.CPU, text)
	}
	return text
}

// outcome is the result of a cell.
type outcome struct {
	Cell    string   `json:"cell"`
	Figures []figure `json:"figures"`
	Ratios  []ratio  `json:"ratios"` // each of ours to each control
}

// measure runs a cell. The servers take turns and each round begins with
// another one, so that a machine whose speed drifts favours none of them.
func (b *comparison) measure(t testing.TB, c cell) outcome {
	t.Helper()
	servers := b.all()
	o := outcome{Cell: c.String(), Figures: make([]figure, len(servers))}
	for i, s := range servers {
		o.Figures[i].Server = s.name
	}
	for round := range b.rounds {
		for i := range servers {
			i = (i + round) % len(servers)
			o.Figures[i].add(b.runCell(t, &servers[i], c))
		}
	}
	for i := range b.ours {
		for k := range b.controls {
			o.Ratios = append(o.Ratios, compareFigures(&o.Figures[i], &o.Figures[len(b.ours)+k]))
		}
	}
	return o
}

// runCell measures one server in a round.
func (b *comparison) runCell(t testing.TB, server *contender, c cell) visit {
	t.Helper()
	args := []string{
		"--rw=" + c.op, "--bs=" + c.size, fmt.Sprintf("--iodepth=%d", c.depth),
		fmt.Sprintf("--numjobs=%d", max(c.jobs, b.jobs, 1)), "--group_reporting",
		"--size=" + b.size, "--time_based", fmt.Sprintf("--runtime=%dms", b.runtime.Milliseconds()),
		fmt.Sprintf("--ramp_time=%dms", b.ramp.Milliseconds()),
	}
	if c.rate > 0 {
		args = append(args, fmt.Sprintf("--rate_iops=%d", c.rate))
	}
	before := server.processorTime(t)
	began := time.Now()
	job := b.client.Run(t, server.uri, args...)[0]
	used := server.processorTime(t) - before - time.Duration(server.rest*float64(time.Since(began)))
	side := job.Read
	if job.Write.IOs > 0 {
		side = job.Write
	}
	v := visit{iops: side.IOPS, mean: side.Clock.Mean / 1e3, median: side.Median() / 1e3, load: loadAverage(t)}
	if b.ramp == 0 {
		v.cpu = used.Seconds() * 1e6 / float64(side.IOs)
	}
	return v
}

// compare measures cells and logs a table.
func (b *comparison) compare(t testing.TB, list []cell) []outcome {
	t.Helper()
	head := fmt.Sprintf("%-24s", "cell")
	for _, c := range b.all() {
		head += fmt.Sprintf(" %9s IOPS %8s %7s", c.name, "µs", "CPU µs")
	}
	for _, c := range b.ours {
		for _, k := range b.controls {
			head += fmt.Sprintf("  %s/%s (least..most)", c.name, k.name)
		}
	}
	t.Log(head)
	var outcomes []outcome
	for _, c := range list {
		o := b.measure(t, c)
		row := fmt.Sprintf("%-24s", c)
		for _, f := range o.Figures {
			cost := "-"
			if len(f.CPU) > 0 {
				cost = fmt.Sprintf("%.1f", median(f.CPU))
			}
			row += fmt.Sprintf(" %14.0f %8.1f %7s", median(f.IOPS), median(f.Median), cost)
		}
		for _, r := range o.Ratios {
			row += fmt.Sprintf("  %12.2f (%.2f..%.2f; %s)", r.Median, r.Least, r.Most, r.costs())
		}
		t.Logf("%s  load %.1f", row, loadAverage(t))
		outcomes = append(outcomes, o)
	}
	return outcomes
}

// summary is what a pair of servers came to over all cells.
type summary struct {
	Server   string  `json:"server"`
	Control  string  `json:"control"`
	Worst    float64 `json:"worst"` // ratio of a cell
	WorstOf  string  `json:"worst_of"`
	Geometry float64 `json:"geometric_mean"`
}

// summarize returns a summary of each pair in the outcomes.
func summarize(outcomes []outcome) []summary {
	var list []summary
	logarithms := make(map[int]float64)
	for _, o := range outcomes {
		for i, r := range o.Ratios {
			if i == len(list) {
				list = append(list, summary{Server: r.Server, Control: r.Control, Worst: math.Inf(1)})
			}
			if r.Median < list[i].Worst {
				list[i].Worst, list[i].WorstOf = r.Median, o.Cell
			}
			logarithms[i] += math.Log(r.Median)
		}
	}
	for i := range list {
		list[i].Geometry = math.Exp(logarithms[i] / float64(len(outcomes)))
	}
	return list
}

func (s summary) String() string {
	return fmt.Sprintf("%s beside %s: worst cell %.2f (%s), geometric mean %.2f", s.Server, s.Control, s.Worst, s.WorstOf, s.Geometry)
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

func TestSummary(t *testing.T) {
	pair := func(a, b float64) []ratio {
		return []ratio{{Server: "chain", Control: "c", Median: a}, {Server: "plain", Control: "c", Median: b}}
	}
	got := summarize([]outcome{{Cell: "x", Ratios: pair(2, 3)}, {Cell: "y", Ratios: pair(0.5, 3)}})
	want := []summary{{"chain", "c", 0.5, "y", 1}, {"plain", "c", 3, "x", 3}}
	if len(got) != 2 || got[0] != want[0] || math.Abs(got[1].Geometry-3) > 1e-9 || got[1].Worst != 3 || got[1].WorstOf != "x" {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseCells(t *testing.T) {
	list, err := parseCells(cells)
	if err != nil || len(list) != 7 || list[6] != (cell{op: "read", size: "1m", depth: 8}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", "read 4k", "read 4k deep", ";"} {
		if list, err := parseCells(bad); err == nil {
			t.Errorf("%q: %v", bad, list)
		}
	}
}
