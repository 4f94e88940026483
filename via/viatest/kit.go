package viatest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/sleepflag"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// Level is a level of VIPL conformance.
type Level int

// The levels; each contains the ones before.
const (
	EarlyAdopter Level = iota + 1
	Functional
	Full
)

// String returns the level's name.
func (l Level) String() string {
	switch l {
	case EarlyAdopter:
		return "early adopter"
	case Functional:
		return "functional"
	case Full:
		return "full"
	default:
		return "no level"
	}
}

// Sets of reliability levels at which a rule holds.
const (
	unreliable = via.UnreliableDelivery
	reliable   = via.ReliableDelivery | via.ReliableReception
	anyLevel   = unreliable | reliable
)

// levels are the reliability levels in the order in which the kit runs them.
var levels = [3]via.ReliabilityLevel{via.UnreliableDelivery, via.ReliableDelivery, via.ReliableReception}

// levelName is a reliability level in the name of a test.
func levelName(l via.ReliabilityLevel) string {
	switch l {
	case via.UnreliableDelivery:
		return "unreliable"
	case via.ReliableDelivery:
		return "delivery"
	case via.ReliableReception:
		return "reception"
	default:
		return "no level"
	}
}

// Fabric is two open devices that reach each other. Both NICs are the kit's: it
// closes them when the case ends.
type Fabric struct {
	Client, Server *via.NIC
	// Address returns an address at which either may listen and the other
	// connect.
	Address func(discriminator string) via.Address
	// Open opens one more device, which reaches Server as Client does. The kit
	// closes it.
	Open func() *via.NIC
	// Tells says what an end hears in place of a code when a connection breaks:
	// for fabrics whose device does not tell one reason from another. A code
	// that is not in it is told as it is.
	Tells map[via.AsyncCode]via.AsyncCode
}

// Open opens a fresh fabric of the provider that decorate makes of the plain
// one. It releases whatever it opens beside the NICs with the test's Cleanup.
type Open func(t testing.TB, decorate func(via.Provider) via.Provider) *Fabric

// plain decorates with nothing.
func plain(p via.Provider) via.Provider { return p }

// CaseInfo describes a case.
type CaseInfo struct {
	Name        string // unique in the kit
	Group       string // what it is about
	Rule        string // the rule it checks, in a sentence
	Level       Level
	Reliability via.ReliabilityLevel // bits: the levels at which the rule holds
	Needs       Capability
}

// kitCase is a case and what it does.
type kitCase struct {
	name  string
	level Level
	rule  string
	at    via.ReliabilityLevel
	needs Capability
	run   func(e *env)
}

// group is the cases about one thing.
type group struct {
	name  string
	cases []kitCase
}

func groups() []group {
	return []group{
		{"layout", layoutCases},
		{"messaging", messagingCases},
		{"rdma", rdmaCases},
		{"protection", protectionCases},
		{"memory", memoryCases},
		{"ordering", orderingCases},
		{"flow", flowCases},
		{"lossy", lossyCases},
		{"spill", spillCases},
		{"fairness", fairnessCases},
		{"completion", completionCases},
		{"announcement", announcementCases},
		{"workqueue", workQueueCases},
		{"notice", noticeCases},
		{"connection", connectionCases},
		{"peers", peerCases},
		{"attributes", attributesCases},
		{"states", stateCases},
		{"disconnect", disconnectCases},
		{"asyncerrors", asyncCases},
		{"lifecycle", lifecycleCases},
		{"badinput", badInputCases},
		{"names", namesCases},
		{"steady", steadyCases},
		{"faults", faultCases},
	}
}

// Cases lists the kit's cases, the error matrix not included.
func Cases() []CaseInfo {
	var out []CaseInfo
	for _, g := range groups() {
		for _, c := range g.cases {
			out = append(out, CaseInfo{
				Name: c.name, Group: g.name, Rule: c.rule, Level: c.level, Reliability: c.at, Needs: c.needs,
			})
		}
	}
	return out
}

// Result is what a run of the kit ran.
type Result struct {
	Cases   int // at a reliability level each
	Cells   int // of the error matrix: 17 rows at each level
	Skipped int
}

// Run runs the kit at the reliability levels that the provider claims, and
// prints how many cases ran. Of a test that is told to run a part of it ("-run
// 'TestConformance/full'") the result is about that part.
func Run(t *testing.T, open Open, skips Skips) Result {
	t.Helper()
	k := newKit(t, open, skips)
	k.runLevels(t, groups())
	t.Run("Matrix", k.runMatrix)
	fmt.Fprintln(os.Stdout, &k.counts)
	return k.counts.result()
}

// RunGroups runs the cases of some groups, as [Cases] names them, and no error
// matrix: for another way to reach a provider on which Run runs besides.
func RunGroups(t *testing.T, open Open, skips Skips, names ...string) {
	t.Helper()
	var some []group
	for _, name := range names {
		i := slices.IndexFunc(groups(), func(g group) bool { return g.name == name })
		if i < 0 {
			t.Fatalf("the kit has no group %q", name)
		}
		some = append(some, groups()[i])
	}
	k := newKit(t, open, skips)
	k.runLevels(t, some)
	fmt.Fprintln(os.Stdout, &k.counts)
}

func newKit(t *testing.T, open Open, skips Skips) *kit {
	t.Helper()
	for _, problem := range skips.problems() {
		t.Error(problem)
	}
	k := &kit{open: open, skips: skips}
	k.inspect(t)
	return k
}

// runLevels runs the cases of groups by conformance level.
func (k *kit) runLevels(t *testing.T, some []group) {
	t.Helper()
	for level := EarlyAdopter; level <= Full; level++ {
		t.Run(level.String(), func(t *testing.T) {
			for _, reliability := range k.claimed() {
				t.Run(levelName(reliability), func(t *testing.T) { k.runLevel(t, some, level, reliability) })
			}
		})
	}
}

// kit is a run of the kit on one provider.
type kit struct {
	open      Open
	skips     Skips
	limits    via.Limits // what both devices have
	faultless bool       // the provider asks for no faults
	counts    counts
}

// inspect learns what the provider claims.
func (k *kit) inspect(t *testing.T) {
	var fault *hook.FaultProvider
	e := newEnv(t, k.open, func(p via.Provider) via.Provider {
		fault = hook.Fault(p, struck(via.FaultDuplicate))
		return fault
	}, 0)
	defer e.close()
	k.counts.provider = e.f.Client.Name()
	k.limits = e.f.Client.Limits()
	k.limits.ReliabilityLevels &= e.f.Server.Limits().ReliabilityLevels
	if len(k.claimed()) == 0 {
		t.Fatalf("%s claims no reliability level", k.counts.provider)
	}
	e.level = k.claimed()[0]
	e.connect()
	for range faultAt {
		e.passes(e.client, e.server)
	}
	k.faultless = fault.Injected() == 0
}

// claimed lists the reliability levels that the provider claims.
func (k *kit) claimed() []via.ReliabilityLevel {
	var out []via.ReliabilityLevel
	for _, l := range levels {
		if k.limits.ReliabilityLevels&l != 0 {
			out = append(out, l)
		}
	}
	return out
}

// runLevel runs the cases of a conformance level at a reliability level.
func (k *kit) runLevel(t *testing.T, some []group, level Level, reliability via.ReliabilityLevel) {
	for _, g := range some {
		for _, c := range g.cases {
			if c.level == level && c.at&reliability != 0 {
				t.Run(c.name, func(t *testing.T) { k.runCase(t, c, reliability) })
			}
		}
	}
}

// runCase runs a case on a fabric of its own.
func (k *kit) runCase(t *testing.T, c kitCase, reliability via.ReliabilityLevel) {
	k.counts.ran(c.name, c.level, reliability)
	watchLeaks(t)
	e := newEnv(t, k.open, plain, reliability)
	if k.skipped(e, c.name, c.needs) {
		k.counts.skip()
		t.Skip(k.skips.reason(c.name, reliability))
	}
	c.run(e)
}

// watchLeaks fails a test whose goroutines or file descriptors outlive it. Call
// it before anything else.
func watchLeaks(t *testing.T) {
	t.Helper()
	before, files := goleak.IgnoreCurrent(), openFiles(t)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if err := goleak.Find(before); err != nil {
			t.Errorf("goroutines outlive the NICs: %v", err)
		}
		if now := openFiles(t); now > files {
			t.Errorf("%d file descriptors outlive the NICs", now-files)
		}
	})
}

// openFiles counts the process's open file descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	// A process keeps its page of sleep flags.
	if _, err := sleepflag.Process(); err != nil {
		t.Fatal(err)
	}
	// The first pipe makes the runtime open descriptors that it keeps.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("open pipe: %v", err)
	}
	_, _ = r.Close(), w.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count open files: %v", err)
	}
	return len(entries)
}
