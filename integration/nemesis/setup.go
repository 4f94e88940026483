package nemesis

import (
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	operations = flag.Int("session.operations", 20_000, "operations on each disk, at `least`")
	kills      = flag.Int("session.kills", 8, "kills of processes of each disk, at `least`")
	seed       = flag.Uint64("session.seed", 1, "of the operations and the order of faults")
)

// Setup is a disk and the way to it.
type Setup struct {
	Listen string // URI of the target
	Scheme string // of that URI

	// More are further URIs to listen on, and Hosts what stands for the host in
	// the URI of the disk then.
	More  []string
	Hosts string

	// Paths are URIs of further paths to the disk.
	Paths []string

	Disk testbed.Disk

	// Memory says that the disk does not survive its target.
	Memory bool

	// Digest says that sessions have data digests.
	Digest bool

	// Target and Attach are the places of both processes; nil is this one.
	Target, Attach testbed.Place

	// Network is faults between both.
	Network []Disturbance
}

// Disturbance is a fault for a time.
type Disturbance struct {
	Name  string
	Begin func() (end func())
}

// connections is how many connections clients have.
const connections = 4

// load has blocks that many requests are for at any time: each connection has
// six in flight, of 4 KiB to 64 KiB.
var load = history.Load{Blocks: 24, Longest: 16, Hot: 4, Durable: 50, Clients: 6, Requests: 1 << 30}

// Run uses the disk until there were enough operations and kills, and fails the
// test if it was not linearizable or a request failed.
func (s Setup) Run(t *testing.T) {
	t.Helper()
	if s.Target == nil {
		s.Target = testbed.StartCommand
	}
	if s.Attach == nil {
		s.Attach = testbed.StartCommand
	}
	r := &run{
		Setup: s, t: t, monitor: history.NewMonitor(), random: rand.New(rand.NewPCG(*seed, 0)), faults: make(map[string]int),
	}
	// Registered first, it runs last: a process prints its log if the test has
	// failed, and there may be thousands.
	t.Cleanup(func() {
		if found := r.monitor.Finish(); len(found) > 0 {
			r.report(found)
		}
	})
	began := time.Now()
	r.startTarget()
	r.startAttach()
	r.startClients()
	deck := r.deck()
	for decks := 0; !r.enough(decks); decks++ {
		for _, i := range r.random.Perm(len(deck)) {
			if r.enough(decks) {
				break
			}
			r.await(r.random.IntN(2 * r.interval(deck)))
			deck[i].do()
			r.faults[deck[i].name]++
			r.await(connections * load.Clients)
		}
	}
	r.stopClients()
	r.monitor.Finish()
	c := r.monitor.Counts()
	t.Logf("%d operations, %d kills, %d violations in %v; %d writes lost with their clients",
		c.Operations, r.kills, c.Anomalies, time.Since(began).Round(time.Second), c.Lost)
	for _, name := range slices.Sorted(maps.Keys(r.faults)) {
		t.Logf("%6d × %s", r.faults[name], name)
	}
}

// enough reports whether the run ends after so many decks.
func (r *run) enough(decks int) bool {
	return decks > 0 && r.kills >= *kills && r.monitor.Counts().Operations >= *operations
}

// interval is how many operations come between two faults of a deck so that
// operations and kills are enough at the same time.
func (r *run) interval(deck []fault) int {
	n := 0
	for _, f := range deck {
		n += f.kills
	}
	return max(*operations*n/(max(*kills, n)*len(deck)), 1)
}

// shown is how many violations are printed.
const shown = 5

// report fails the test, and keeps the operations that prove violations in a
// folder.
func (r *run) report(found []*history.Anomaly) {
	r.t.Helper()
	folder, err := os.MkdirTemp("", "viablk-history-")
	testbed.Must(r.t, err)
	for i, a := range found[:min(shown, len(found))] {
		path := filepath.Join(folder, "violation-"+string(rune('1'+i)))
		testbed.Must(r.t, a.History().Save(path+".json"))
		again, err := history.Replay(path + ".json")
		testbed.Must(r.t, err)
		v, ok := again.Check(time.Minute).(*history.Violation)
		if !ok {
			r.t.Errorf("the replay of %s.json is linearizable", path)
			continue
		}
		testbed.Must(r.t, v.Visualize(path+".html"))
		r.t.Errorf("%s.json, after %d operations: %v", path, a.Behind, a)
	}
}
