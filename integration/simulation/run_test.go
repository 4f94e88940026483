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
	var next, seeds, requests, failures atomic.Int64
	var running sync.WaitGroup
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
				seeds.Add(1)
				requests.Add(int64(r.Requests))
				if r.Err != nil {
					failures.Add(1)
				}
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
	t.Logf("%d seeds from %d, %d requests, %d failures in %v: %.0f requests per second", seeds.Load(), *firstFlag, requests.Load(),
		failures.Load(), spent.Round(time.Millisecond), float64(requests.Load())/spent.Seconds())
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
