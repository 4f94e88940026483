package compare

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// The flags of TestCost: a short form has fewer rounds, parts or connections.
var (
	costParts       = flag.String("cost.parts", "iops,spread,tcp,rate,bad,idle,cable", "`PARTS` that TestCost measures; there is many, too")
	costServers     = flag.String("cost.servers", "plain,chain", "`SERVERS` that TestCost measures beside nbdkit")
	costConnections = flag.String("cost.connections", "1,4,16,64", "`NUMBERS` of connections in part iops")
	costRounds      = flag.Int("cost.rounds", 5, "`NUMBER` of rounds")
	costTime        = flag.Duration("cost.time", 2*time.Second, "measured `TIME` of a cell, server and round")
	costSize        = flag.String("cost.size", "1G", "`SIZE` of each disk in memory")
	costClients     = flag.Int("cost.clients", 200, "`NUMBER` of idle clients of plain and nbdkit")
	costDisks       = flag.Int("cost.disks", 8, "`NUMBER` of disks that are attached and idle")
	costBefore      = flag.String("cost.before", "", "another build of viablk, at `PATH`, that is measured too")
	costExports     = flag.String("cost.exports", "1,10,100,1000", "`NUMBERS` of exports in part many")
	costSessions    = flag.String("cost.sessions", "1,10,100,500", "`NUMBERS` of sessions in part many")
	costReport      = flag.String("cost.report", "", "write a page with charts and its data to `FOLDER`")
)

// The cells of the parts.
var (
	throughput = []cell{
		{op: "randread", size: "4k", depth: 1},
		{op: "randwrite", size: "4k", depth: 1},
		{op: "randread", size: "4k", depth: 32},
		{op: "randwrite", size: "4k", depth: 32},
		{op: "read", size: "128k", depth: 16},
		{op: "write", size: "128k", depth: 16},
	}
	spread = []cell{ // of one connection, beside four that have its depth together
		{op: "randread", size: "4k", depth: 4},
		{op: "randwrite", size: "4k", depth: 4},
		{op: "randread", size: "4k", depth: 32},
		{op: "randwrite", size: "4k", depth: 32},
		{op: "read", size: "128k", depth: 16},
		{op: "write", size: "128k", depth: 16},
	}
	large = []cell{ // of part tcp
		{op: "read", size: "128k", depth: 16},
		{op: "write", size: "128k", depth: 16},
		{op: "read", size: "1m", depth: 8},
		{op: "write", size: "1m", depth: 8},
	}
	rated = []cell{
		{op: "randread", size: "4k", depth: 8, rate: 1000},
		{op: "randwrite", size: "4k", depth: 8, rate: 1000},
		{op: "randread", size: "4k", depth: 8, rate: 10000},
		{op: "randwrite", size: "4k", depth: 8, rate: 10000},
		{op: "randread", size: "4k", depth: 8, rate: 40000},
		{op: "randwrite", size: "4k", depth: 8, rate: 40000},
		{op: "randread", size: "128k", depth: 8, rate: 4000},
		{op: "randwrite", size: "128k", depth: 8, rate: 4000},
	}
)

// mostChained is how many connections the chain is measured with.
const mostChained = 16

// costPlan is what TestCost measures.
type costPlan struct {
	cells, spread, tcp, rates, bad, many, cable []cell // of the parts; none: the part is not measured

	idle           bool
	connections    []int
	servers        []string
	before         string
	rounds         int
	runtime        time.Duration
	size           string
	clients, disks int

	exports, sessions []int // of part many
}

// parseCost makes a plan of the flags' lists.
func parseCost(parts, servers, connections string) (p costPlan, err error) {
	for part := range strings.SplitSeq(parts, ",") {
		switch part {
		case "iops":
			p.cells = throughput
		case "spread":
			p.spread = spread
		case "tcp":
			p.tcp = large
		case "rate":
			p.rates = rated
		case "bad":
			p.bad = orderly
		case "many":
			p.many = lone
		case "cable":
			p.cable = throughput
		case "idle":
			p.idle = true
		default:
			return p, fmt.Errorf("part %q is not iops, spread, tcp, rate, bad, many, idle or cable", part)
		}
	}
	for name := range strings.SplitSeq(servers, ",") {
		if name != "plain" && name != "chain" {
			return p, fmt.Errorf("server %q is neither plain nor chain", name)
		}
		p.servers = append(p.servers, name)
	}
	p.connections, err = parseNumbers(connections)
	return p, err
}

// parseNumbers reads numbers, with commas in between.
func parseNumbers(list string) (numbers []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number from 1 on", text)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// TestCost measures what a memory disk costs and does, plain and through the
// chain, beside nbdkit; see docs/benchmarking.md.
func TestCost(t *testing.T) {
	testbed.OnDemand(t)
	plan, err := parseCost(*costParts, *costServers, *costConnections)
	testbed.Must(t, err)
	plan.before, plan.rounds, plan.runtime, plan.size = *costBefore, *costRounds, *costTime, *costSize
	plan.clients, plan.disks = *costClients, *costDisks
	plan.exports, err = parseNumbers(*costExports)
	testbed.Must(t, err)
	plan.sessions, err = parseNumbers(*costSessions)
	testbed.Must(t, err)
	p := measureCost(t, &plan)
	if *costReport != "" {
		p.save(t, *costReport)
	}
}

// measureCost measures what is planned, logs it and makes a page of it.
func measureCost(t *testing.T, plan *costPlan) *page {
	t.Helper()
	testbed.Requires(t, "fio", "nbdkit")
	p := newPage(t, "fio", "nbdkit")
	p.Schema, p.Name = "viablk.bench.cost/v1", "cost"
	t.Log(strings.Join(p.Machine, ", "))
	if len(plan.cells)+len(plan.spread)+len(plan.rates)+len(plan.bad) > 0 {
		b := plan.start(t, "unix", plan.servers)
		ours := b.ours
		for _, n := range plan.connections {
			b.jobs, b.ours = n, slices.DeleteFunc(slices.Clone(ours), func(c contender) bool {
				return n > mostChained && strings.HasPrefix(c.name, "chain")
			})
			if len(plan.cells) > 0 && len(b.ours) > 0 {
				title := fmt.Sprintf("memory, a unix socket, connections: %d", n)
				p.addSection(fmt.Sprintf("connections-%d", n), title, b.compare(t, plan.cells))
			}
		}
		b.jobs, b.ours = 1, ours
		if len(plan.spread) > 0 {
			for i := range ours {
				title := ours[i].name + ", a unix socket, four connections beside one with the same depth in all"
				p.addSection("spread-"+ours[i].name, title, b.compareSpread(t, &ours[i], plan.spread))
			}
		}
		if len(plan.rates) > 0 {
			p.addSection("rate", "memory, a unix socket, one connection, fixed rates", b.compare(t, plan.rates))
		}
		if len(plan.bad) > 0 {
			for i := range ours {
				title := ours[i].name + ", a unix socket, four connections beside clients that misbehave, and alone"
				p.addSection("bad-"+ours[i].name, title, b.compareBad(t, &ours[i], plan.bad))
			}
		}
	}
	if len(plan.tcp) > 0 {
		p.addSection("tcp", "memory, TCP, one connection", plan.start(t, "tcp", []string{"plain"}).compare(t, plan.tcp))
	}
	if len(plan.many) > 0 {
		p.addSection("exports", "chain, one disk of a target with so many exports", plan.compareMany(t, plan.exports, manyExports))
		p.addSection("sessions", "chain, one of so many sessions of a target", plan.compareMany(t, plan.sessions, manySessions))
	}
	if plan.idle {
		p.Idle = plan.measureIdle(t)
	}
	if len(plan.cable) > 0 {
		plan.measureCable(t, p)
	}
	return p
}

// start starts servers of a wire.
func (plan *costPlan) start(t *testing.T, wire string, servers []string) *comparison {
	t.Helper()
	c := contest{name: "cost", disk: "memory", wire: wire}
	b := &comparison{size: plan.size, rounds: plan.rounds, runtime: plan.runtime}
	for _, build := range plan.builds(t) {
		for _, name := range servers {
			started := c.plain
			if name == "chain" {
				started = func(t testing.TB, program, size, _ string) contender { return c.through(t, program, size) }
			}
			server := started(t, build.program, plan.size, "")
			server.name += build.suffix
			b.ours = append(b.ours, server)
		}
	}
	b.controls = append(b.controls, c.nbdkit(t, plan.size, ""))
	b.fill(t)
	return b
}

// build is a program under test.
type build struct {
	program, suffix string
}

// builds are this one and the one to compare with.
func (plan *costPlan) builds(t *testing.T) []build {
	t.Helper()
	list := []build{{testbed.PlainProgram(t), ""}}
	if plan.before != "" {
		list = append(list, build{plan.before, "-before"})
	}
	return list
}

// loadAverage is the machine's over the last minute.
func loadAverage(t testing.TB) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	testbed.Must(t, err)
	load, err := parseLoad(string(text))
	testbed.Must(t, err)
	return load
}

// parseLoad reads the first field of /proc/loadavg.
func parseLoad(text string) (float64, error) {
	first, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("load average in %q: %w", text, err)
	}
	return load, nil
}

// TestCostWorks keeps the measurement alive where it does not run: each server
// has figures in each part.
func TestCostWorks(t *testing.T) {
	plan, err := parseCost("iops,spread,tcp,rate,bad,many,idle", "plain,chain", "2,17")
	testbed.Must(t, err)
	plan.cells, plan.spread, plan.tcp, plan.rates = plan.cells[:1], plan.spread[:1], plan.tcp[:1], plan.rates[:1]
	plan.bad, plan.many = plan.bad[:1], plan.many[:1]
	plan.exports, plan.sessions = []int{1, 3}, []int{1, 4}
	plan.rounds, plan.runtime, plan.size, plan.clients, plan.disks = 1, 100*time.Millisecond, "16M", 3, 2
	p := measureCost(t, &plan)
	p.save(t, t.TempDir())
	want := map[string][]string{
		"connections-2": {"plain", "chain", "nbdkit"}, "connections-17": {"plain", "nbdkit"}, "rate": {"plain", "chain", "nbdkit"},
		"spread-plain": {"four", "one"}, "spread-chain": {"four", "one"}, "tcp": {"plain", "nbdkit"},
		"bad-plain": {"beside", "alone"}, "bad-chain": {"beside", "alone"}, "exports": {"3", "1"}, "sessions": {"4", "1"},
	}
	for _, s := range p.Contests {
		for _, o := range s.Outcomes {
			var names []string
			for _, f := range o.Figures {
				names = append(names, f.Server)
				if !(median(f.IOPS) > 0) || !(median(f.CPU) > 0) || !(median(f.Median) > 0) || !(median(f.Load) >= 0) {
					t.Errorf("%s: %s: %+v", s.Name, o.Cell, f)
				}
			}
			for _, r := range o.Ratios {
				if !(r.Median > 0) || !(r.CPU > 0) || !(r.P50 > 0) {
					t.Errorf("%s: %s: %+v", s.Name, o.Cell, r)
				}
			}
			if !slices.Equal(names, want[s.Name]) {
				t.Errorf("%s: %s measured %v, want %v", s.Name, o.Cell, names, want[s.Name])
			}
		}
		delete(want, s.Name)
	}
	if len(want) != 0 {
		t.Errorf("not measured: %v", want)
	}
	var idle []string
	for _, f := range p.Idle {
		idle = append(idle, fmt.Sprintf("%s %d", f.Server, f.Clients))
		if f.Threads < 1 || len(f.Share) != plan.rounds || median(f.Share) < 0 || f.Server == "chain" && f.Resident <= 0 {
			t.Errorf("%+v", f)
		}
	}
	if want := []string{"plain 3", "chain 2", "nbdkit 3"}; !slices.Equal(idle, want) {
		t.Errorf("idle: %v, want %v", idle, want)
	}
}

func TestParseCost(t *testing.T) {
	p, err := parseCost("rate,spread,idle", "chain", "1,64")
	if err != nil || len(p.cells) != 0 || len(p.tcp) != 0 || len(p.rates) == 0 || len(p.spread) == 0 || !p.idle || !slices.Equal(p.connections, []int{1, 64}) || !slices.Equal(p.servers, []string{"chain"}) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range [][3]string{
		{"", "plain", "1"},
		{"iops,speed", "plain", "1"},
		{"iops", "", "1"},
		{"iops", "plain,nbdkit", "1"},
		{"iops", "plain", ""},
		{"iops", "plain", "1,0"},
		{"iops", "plain", "four"},
	} {
		if p, err := parseCost(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

func TestParseLoad(t *testing.T) {
	if load, err := parseLoad("1.32 3.00 2.40 2/345 6789\n"); err != nil || load != 1.32 {
		t.Errorf("%v, %v", load, err)
	}
	if load, err := parseLoad(""); err == nil {
		t.Errorf("no load average is %v", load)
	}
}

// The rounds of a figure stay in step, but for the processor time where a ramp
// makes it unknown.
func TestRoundsOfFigure(t *testing.T) {
	var f figure
	f.add(visit{iops: 1, mean: 2, median: 3, cpu: 4, load: 5})
	f.add(visit{iops: 6, mean: 7, median: 8, load: 9})
	want := figure{IOPS: []float64{1, 6}, Latency: []float64{2, 7}, Median: []float64{3, 8}, CPU: []float64{4}, Load: []float64{5, 9}}
	if fmt.Sprint(f) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", f, want)
	}
}
