package compare

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// benchRow is a row of "viablk bench via".
type benchRow struct {
	Mode     string     `json:"mode"`
	Size     int        `json:"size"`
	Wait     string     `json:"wait"`
	VIs      int        `json:"vis"`
	Time     overRounds `json:"time_ns"`
	MBps     float64    `json:"mb_per_second"`
	Baseline *control   `json:"baseline"`
	PerOp    struct {
		Allocations    float64 `json:"allocations"`
		CPU            float64 `json:"cpu_ns"`
		PacketsPerSend float64 `json:"packets_per_send"`
	} `json:"per_op"`
}

// overRounds is a figure over the rounds.
type overRounds struct {
	Median float64 `json:"median"`
}

// control is what a row is compared with.
type control struct {
	Name  string     `json:"name"`
	Ratio overRounds `json:"ratio"`
}

// benchRows reads the report of "viablk bench via", which must have rows.
func benchRows(t testing.TB, c *testbed.Tool) []benchRow {
	t.Helper()
	var report struct {
		Rows []benchRow `json:"rows"`
	}
	testbed.Must(t, json.NewDecoder(strings.NewReader(testbed.Succeed(t, c))).Decode(&report))
	if len(report.Rows) == 0 {
		t.Fatalf("%s measured nothing\n%s", c, c.Output())
	}
	return report.Rows
}

// benchCable is "viablk bench via" of RoCE over a cable of its own.
func benchCable(t testing.TB, mtu int, args ...string) []benchRow {
	t.Helper()
	return benchRows(t, testbed.StartPath(t, testbed.Environment(t), testbed.PlainProgram(t), append([]string{
		"bench", "via", "--provider", "roce", "--veth", strconv.Itoa(mtu), "-o", "json",
	}, args...)...))
}

// targets is a table of what is wanted and what was measured.
type targets struct {
	t testing.TB
}

func (g targets) log(what string, measured float64, relation string, limit float64) {
	g.t.Helper()
	met := "no"
	if relation == "<=" && measured <= limit || relation == ">=" && measured >= limit {
		met = "yes"
	}
	g.t.Logf("%-64s | %s %.2f | %8.3f | %s", what, relation, limit, measured, met)
}

// effort is how much is measured.
type effort struct {
	rounds int
	count  int // operations of a round; 0 is the usual
	sizes  string
	waits  string
	cells  string
	time   time.Duration // of a cell, server and round
	size   string        // of the disk
}

func (e effort) args(more ...string) []string {
	return append(more, "--rounds", strconv.Itoa(e.rounds), "--count", strconv.Itoa(e.count))
}

// TestRoceTargets measures everything that RoCE is to reach beside its
// controls, and prints what is met; see docs/benchmarking.md. It fails if
// something cannot be measured, not if it is slow.
func TestRoceTargets(t *testing.T) {
	testbed.OnDemand(t)
	rounds, err := strconv.Atoi(testbed.Setting("VIABLK_BENCH_ROUNDS", "5"))
	testbed.Must(t, err)
	runtimeOfCell, err := time.ParseDuration(testbed.Setting("VIABLK_BENCH_TIME", "2s"))
	testbed.Must(t, err)
	measureRoceTargets(t, effort{rounds, 0, "64K,256K,1M", "poll,sleep", "randread 4k 32;randwrite 4k 32;read 128k 16;write 128k 16", runtimeOfCell, "1G"})
}

// TestRoceTargetsWork keeps the measurement alive where it does not run.
func TestRoceTargetsWork(t *testing.T) {
	measureRoceTargets(t, effort{1, 20, "64K", "sleep", "randread 4k 4", 100 * time.Millisecond, "16M"})
}

func measureRoceTargets(t *testing.T, e effort) {
	g := targets{t}
	t.Log("target | limit | measured | met")
	g.latency(e)
	for mtu, limit := range map[int]float64{4500: 1.11, 1500: 1.33} {
		g.bulk(e, mtu, limit)
	}
	g.connections(e)
	g.loss(e)
	g.chain(t, e)
}

// latency is that of a message beside a datagram's.
func (g targets) latency(e effort) {
	g.t.Helper()
	for _, r := range benchCable(g.t, 4500, e.args("--mode", "udp,pingpong", "--sizes", "64", "--wait", "poll,spin,sleep")...) {
		if r.Mode == "pingpong" {
			g.log(fmt.Sprintf("64 B one way, %s, to UDP", r.Wait), g.ratio(r), "<=", 1.25)
		}
		g.allocations(r)
	}
}

// bulk is the time of RDMA beside a TCP stream's.
func (g targets) bulk(e effort, mtu int, limit float64) {
	g.t.Helper()
	stream := 0.0 // CPU of the stream for a byte
	for _, r := range benchCable(g.t, mtu, e.args("--mode", "tcp,rdma-write,rdma-read", "--sizes", e.sizes, "--wait", e.waits)...) {
		cpu := r.PerOp.CPU / float64(r.Size)
		if r.Mode == "tcp" {
			stream = cpu
			continue
		}
		what := fmt.Sprintf("%s of %d KiB, %s, link MTU %d", r.Mode, r.Size>>10, r.Wait, mtu)
		g.log(what+", time to TCP", g.ratio(r), "<=", limit)
		g.t.Logf("%s: %.2f CPU s/GiB, TCP %.2f; %.1f packets per send", what, cpu*(1<<30)/1e9, stream*(1<<30)/1e9, r.PerOp.PacketsPerSend)
		g.allocations(r)
	}
}

// ratio returns the ratio of a row to its control, which it must have.
func (g targets) ratio(r benchRow) float64 {
	g.t.Helper()
	if r.Baseline == nil || r.Baseline.Ratio.Median <= 0 {
		g.t.Fatalf("%+v is compared with nothing", r)
	}
	return r.Baseline.Ratio.Median
}

func (g targets) allocations(r benchRow) {
	g.t.Helper()
	if r.Mode == "pingpong" || strings.HasPrefix(r.Mode, "rdma") {
		g.log(fmt.Sprintf("allocations of %s, %d B, %s", r.Mode, r.Size, r.Wait), r.PerOp.Allocations, "<=", 0.01)
	}
}

// connections is the time of a message when five hundred connections take
// turns.
func (g targets) connections(e effort) {
	g.t.Helper()
	waits := []string{"--mode", "pingpong", "--sizes", "64", "--wait", e.waits}
	one := benchCable(g.t, 4500, e.args(append(waits, "--vis", "1")...)...)
	for i, r := range benchCable(g.t, 4500, e.args(append(waits, "--vis", "500")...)...) {
		g.log("64 B one way, 500 connections to 1, "+r.Wait, r.Time.Median/one[i].Time.Median, "<=", 1.3)
	}
}

// loss is what random loss leaves of throughput.
func (g targets) loss(e effort) {
	g.t.Helper()
	for _, r := range measureLoss(g.t, e.rounds, "--count", strconv.Itoa(e.count), "--sizes", e.sizes, "--wait", e.waits) {
		switch r.loss {
		case 0.01:
			g.log(r.row+", 1 % loss, of lossless", r.cut, ">=", 0.6)
		case 0.05:
			g.log(r.row+", 5 % loss, of lossless", r.cut, ">=", 0.001)
		}
	}
}

// chain is the whole beside nbdkit's proxy.
func (g targets) chain(t *testing.T, e effort) {
	for _, mtu := range []int{1500, 4500} {
		t.Run(fmt.Sprintf("chain, MTU %d", mtu), func(t *testing.T) {
			list, err := parseCells(e.cells)
			testbed.Must(t, err)
			b := startCable(t, []build{{testbed.PlainProgram(t), ""}}, e.size, mtu)
			b.rounds, b.runtime, b.ramp = e.rounds, e.time, e.time/4
			for _, o := range b.compare(t, list) {
				targets{t}.log(fmt.Sprintf("fio %s, link MTU %d, to nbdkit's proxy", o.Cell, mtu), o.Ratios[0].Median, ">=", 1.5)
			}
		})
	}
}

// lossy is the throughput of RDMA with loss.
type lossy struct {
	row  string
	loss float64
	mbps float64
	cut  float64 // of what it is without loss, segments cut before the cable too
	all  float64 // of what it is without loss, runs of segments whole
}

// measureLoss measures RDMA with and without loss in turns: packets are lost
// one by one, so that segments are cut before the cable. The same without loss
// on a cable that carries runs of segments as one is beside it.
func measureLoss(t testing.TB, rounds int, args ...string) []lossy {
	t.Helper()
	cut, whole := netbed.New(t, netbed.Options{MTU: 4500}), netbed.New(t, netbed.Options{MTU: 4500, Whole: true})
	startBenchPeer(t, cut)
	startBenchPeer(t, whole)
	args = append(args, "--mode", "rdma-write,rdma-read", "--rounds", "1")
	rates := make(map[string]map[float64][]float64) // by row and loss
	var order []string
	const uncut = -1
	losses := []float64{uncut, 0, 0.001, 0.01, 0.05}
	for range rounds {
		for _, loss := range losses {
			b, faults := whole, []*netbed.Fault(nil)
			if loss >= 0 {
				b, faults = cut, testbed.Losing(loss)(cut)
			}
			for _, r := range benchVia(t, b, args...) {
				row := fmt.Sprintf("%s of %d KiB, %s", r.Mode, r.Size>>10, r.Wait)
				if rates[row] == nil {
					rates[row] = make(map[float64][]float64)
					order = append(order, row)
				}
				rates[row][loss] = append(rates[row][loss], r.MBps)
			}
			for _, f := range faults {
				f.Stop()
			}
		}
	}
	var all []lossy
	for _, row := range order {
		by := rates[row]
		for _, loss := range losses[1:] {
			all = append(all, lossy{row, loss, median(by[loss]), median(ratios(by[loss], by[0])), median(ratios(by[loss], by[uncut]))})
		}
	}
	return all
}
