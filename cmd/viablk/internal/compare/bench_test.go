package compare

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// TestCompareWithNbdkit is the benchmark of the whole; see
// docs/benchmarking.md. It takes minutes and a quiet machine, so it runs on
// demand.
func TestCompareWithNbdkit(t *testing.T) {
	testbed.OnDemand(t)
	c := contest{name: "memory-unix", disk: "memory", wire: "unix", chain: true}
	c.start(t, "1G").run(t, cells)
}

// TestCompareServers compares NBD servers on all kinds of disks and wires, and
// writes a page with charts; see docs/benchmarking.md. It takes the better part
// of an hour.
func TestCompareServers(t *testing.T) {
	testbed.OnDemand(t)
	chosen, err := regexp.Compile(testbed.Setting("VIABLK_BENCH_CONTESTS", "."))
	testbed.Must(t, err)
	p := newPage(t, tools...)
	for _, c := range contests(t) {
		if !chosen.MatchString(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Log(c)
			p.add(c, c.start(t, "1G").run(t, cells))
		})
	}
	if to := os.Getenv("VIABLK_BENCH_REPORT"); to != "" {
		p.save(t, to)
	}
}

// tools are what a comparison of servers runs.
var tools = []string{"fio", "nbdkit", "qemu-nbd"}

// run measures cells as the environment says.
func (b *comparison) run(t *testing.T, standard string) []outcome {
	t.Helper()
	list, err := parseCells(testbed.Setting("VIABLK_BENCH_CELLS", standard))
	testbed.Must(t, err)
	rounds, err := strconv.Atoi(testbed.Setting("VIABLK_BENCH_ROUNDS", "5"))
	testbed.Must(t, err)
	runtimeOfCell, err := time.ParseDuration(testbed.Setting("VIABLK_BENCH_TIME", "2s"))
	testbed.Must(t, err)
	least, err := strconv.ParseFloat(testbed.Setting("VIABLK_BENCH_LEAST", "0"), 64)
	testbed.Must(t, err)
	b.rounds, b.runtime, b.ramp = rounds, runtimeOfCell, 500*time.Millisecond
	t.Log(strings.Join(machine(t, tools...), ", "))
	outcomes := b.compare(t, list)
	for _, s := range summarize(outcomes) {
		t.Log(s)
		if s.Worst < least {
			t.Errorf("%s reaches %.2f of %s in its worst cell, less than %.2f", s.Server, s.Worst, s.Control, least)
		}
	}
	return outcomes
}

// machine says what measures.
func machine(t testing.TB, tools ...string) []string {
	t.Helper()
	list := []string{strconv.Itoa(runtime.NumCPU()) + " processors", fmt.Sprintf("load average %.1f", loadAverage(t))}
	for _, tool := range tools {
		line, _, _ := strings.Cut(testbed.Run(t, tool, "--version"), "\n")
		list = append(list, strings.TrimSpace(line))
	}
	return list
}

// TestComparisonWorks keeps the benchmark alive where it does not run.
func TestComparisonWorks(t *testing.T) {
	p := newPage(t, tools...)
	for _, c := range []contest{
		{name: "memory-unix", disk: "memory", wire: "unix", chain: true, qemu: true},
		{name: "file-tcp", disk: t.TempDir(), wire: "tcp", jobs: 2, qemu: true},
		{name: "memory-tls", disk: "memory", wire: "tls"},
	} {
		b := c.start(t, "16M")
		b.rounds, b.runtime = 1, 100*time.Millisecond
		outcomes := b.compare(t, []cell{{op: "randread", size: "4k", depth: 4}, {op: "write", size: "128k", depth: 2}})
		for _, s := range summarize(outcomes) {
			if !(s.Worst > 0) || math.IsInf(s.Worst, 0) || s.Geometry < s.Worst {
				t.Errorf("%s: %v", c.name, s)
			}
		}
		p.add(c, outcomes)
	}
	p.save(t, t.TempDir())
}
