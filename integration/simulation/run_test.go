package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag     = flag.Uint64("sim.seed", 0, "the one seed to run, with the logs of the product")
	seedsFlag    = flag.Int("sim.seeds", 60, "how many seeds to run")
	firstFlag    = flag.Uint64("sim.first", 1, "the first of them")
	requestsFlag = flag.Int("sim.requests", 1000, "requests of a seed, about")
	clientsFlag  = flag.Int("sim.clients", 0, "with -sim.seed: the clients that take part, from the first on; 0 is all")
	withoutFlag  = flag.String("sim.without", "", "with -sim.seed: numbers of the faults that do not happen")
	allFlag      = flag.Bool("sim.all", false, "run all seeds, also after one that fails")
	foundFlag    = flag.Bool("sim.found", false, "the failure of a seed is what the caller looks for: print the first and shrink nothing")
)

// collectAt is the growth of the heap, in percent, at which garbage is
// collected: a run leaves little.
const collectAt = 800

// TestSimulation runs seeds, one on each processor at a time.
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		replay(t)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(collectAt))
	var next atomic.Int64
	var running sync.WaitGroup
	var ran totals
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			runner := NewRunner()
			defer runner.Close()
			for *allFlag || !t.Failed() {
				i := next.Add(1) - 1
				if i >= int64(*seedsFlag) {
					return
				}
				seed := *firstFlag + uint64(i)
				r := runner.Run(NewPlan(seed, *requestsFlag), nil)
				ran.add(&r)
				switch {
				case r.Err != nil && *foundFlag:
					t.Errorf("found by seed %d: %v", seed, r.Err)
				case r.Err != nil:
					t.Error(failure(seed))
				}
			}
		})
	}
	running.Wait()
	spent := time.Since(began)
	t.Logf("%d seeds from %d, %d requests, %d failures in %v: %.0f requests per second", ran.seeds, *firstFlag, ran.requests,
		ran.failures, spent.Round(time.Millisecond), float64(ran.requests)/spent.Seconds())
	t.Logf("%v", &ran.counts)
	if !t.Failed() && ran.seeds >= countedSeeds && *requestsFlag >= 1000 {
		for _, text := range ran.missing() {
			t.Error(text)
		}
	}
}

// totals is what several runs were together.
type totals struct {
	mu                        sync.Mutex
	seeds, requests, failures int
	counts                    Counts
}

func (x *totals) add(r *Result) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seeds++
	x.requests += r.Requests
	x.counts.add(r.Counts)
	if r.Err != nil {
		x.failures++
	}
}

// countedSeeds is from how many seeds on the counts are those of the schedules,
// not of chance.
const countedSeeds = 60

// missing returns what the runs did too seldom that they are there for. Each
// least number is of a thousand seeds with a thousand requests, and about a
// third of what they have.
func (x *totals) missing() (all []string) {
	for _, c := range []struct {
		what        string
		were, least int
	}{
		{"fail-overs", x.counts.FailOvers, 400},
		{"fail-overs with packets held back", x.counts.HeldFailOvers, 150},
		{"packets after the end of their connection", x.counts.LatePackets, 1000},
		{"packets at a later connection", x.counts.Misrouted, 12},
		{"takeovers", x.counts.Takeovers, 200},
		{"takeovers that fail", x.counts.FailedTakeovers, 40},
		{"successors of a target that died", x.counts.Orphans, 30},
		{"targets that end with requests in the disk", x.counts.Unfinished, 10},
	} {
		if least := c.least * x.seeds / 1000; c.were < least {
			all = append(all, fmt.Sprintf("%d %s in %d seeds, %d at least: the schedules do not exercise them", c.were, c.what, x.seeds, least))
		}
	}
	return all
}

// TestMissing: runs in which nothing happens miss everything, and those in
// which all happens often nothing.
func TestMissing(t *testing.T) {
	seldom, often := totals{seeds: 1000}, totals{seeds: 1000}
	often.counts = Counts{
		PathLosses: 9999, FailOvers: 9999, HeldFailOvers: 9999, LatePackets: 9999, Misrouted: 9999,
		Takeovers: 9999, FailedTakeovers: 9999, Orphans: 9999, Unfinished: 9999,
	}
	if n := len(seldom.missing()); n != 8 {
		t.Errorf("%d are missing of 8: %q", n, seldom.missing())
	}
	if all := often.missing(); len(all) != 0 {
		t.Errorf("%q", all)
	}
}

// failure returns the schedule of a seed that fails, shrunk, and the command
// that runs it again.
func failure(seed uint64) string {
	d, err := Shrink(seed, *requestsFlag)
	p := d.Plan(seed)
	return fmt.Sprintf("%v\n%vgo test -run 'TestSimulation$' ./integration/simulation -args -sim.seed %d %v", err, &p, seed, d)
}

// replay runs one seed.
func replay(t *testing.T) {
	d := Reduction{Requests: *requestsFlag, Clients: *clientsFlag}
	for number := range strings.SplitSeq(*withoutFlag, ",") {
		if i, err := strconv.Atoi(number); err == nil {
			d.Without = append(d.Without, i)
		}
	}
	p := d.Plan(*seedFlag)
	fmt.Print(&p)
	r := Run(p, os.Stdout)
	if r.Err != nil {
		t.Error(r.Err)
	}
	t.Logf("%d requests, %d steps, %v of virtual time, trace %016x", r.Requests, r.Steps, r.Time, uint64(r.Trace))
}
