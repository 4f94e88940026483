package viatest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"go.uber.org/goleak"
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

// Fabric is two open devices that reach each other. Both NICs are the kit's: it
// closes them when the case ends.
type Fabric struct {
	Client, Server *via.NIC
	// Address returns an address at which Server listens and Client connects.
	Address func(discriminator string) via.Address
	// Sever cuts the fabric under all connections; nil where that cannot be done.
	Sever func()
}

// Skips names the cases that a provider does not run, with the reason of each.
type Skips map[string]string

// CaseInfo describes a case.
type CaseInfo struct {
	Name        string // unique in the kit
	Group       string // what it is about
	Rule        string // the rule it checks, in a sentence
	Level       Level
	Reliability via.ReliabilityLevel // bits: the levels at which the rule holds
	Needs       Capability
}

// Capability is something that a provider may lack; its limits say so.
type Capability int

// The capabilities. A case that needs one may be skipped only where it lacks.
const (
	NeedsNothing  Capability = iota
	NeedsRdmaRead            // Limits.RdmaReadLevels
	NeedsSever               // Fabric.Sever
)

// problems lists what is wrong with the skips, whatever the provider.
func (s Skips) problems() []string {
	known := make(map[string]bool)
	for _, c := range Cases() {
		known[c.Name] = true
	}
	var out []string
	for name, reason := range s {
		switch {
		case !known[name]:
			out = append(out, fmt.Sprintf("skip of an unknown case %q", name))
		case reason == "":
			out = append(out, fmt.Sprintf("skip of case %q without a reason", name))
		}
	}
	return out
}

// kitCase is a case and what it does.
type kitCase struct {
	name  string
	level Level
	rule  string
	needs Capability
	run   func(e *env)
}

// group is the cases of one file.
type group struct {
	name  string
	cases []kitCase
}

// levelUnderTest is the reliability level of the kit's connections. The error
// rules differ by level; this is the one that all cases are written for.
const levelUnderTest = via.ReliableDelivery

func groups() []group {
	return []group{
		{"layout", layoutCases},
		{"messaging", messagingCases},
		{"rdma", rdmaCases},
		{"protection", protectionCases},
		{"memory", memoryCases},
		{"ordering", orderingCases},
		{"flow", flowCases},
		{"completion", completionCases},
		{"connection", connectionCases},
		{"disconnect", disconnectCases},
		{"asyncerrors", asyncCases},
		{"lifecycle", lifecycleCases},
		{"steady", steadyCases},
	}
}

// Cases lists the kit's cases in the order in which they run.
func Cases() []CaseInfo {
	var out []CaseInfo
	for _, g := range groups() {
		for _, c := range g.cases {
			out = append(out, CaseInfo{
				Name: c.name, Group: g.name, Rule: c.rule, Level: c.level,
				Reliability: levelUnderTest, Needs: c.needs,
			})
		}
	}
	return out
}

// Run runs the kit. open opens a fresh fabric; what it opened beside the NICs it
// releases with the test's Cleanup.
func Run(t *testing.T, open func(testing.TB) *Fabric, skips Skips) {
	t.Helper()
	for _, problem := range skips.problems() {
		t.Error(problem)
	}
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) { runCase(t, open, c, skips[c.name]) })
			}
		})
	}
}

// runCase runs a case on a fabric of its own.
func runCase(t *testing.T, open func(testing.TB) *Fabric, c kitCase, skip string) {
	before, files := goleak.IgnoreCurrent(), openFiles(t)
	t.Run("case", func(t *testing.T) {
		f := open(t)
		e := newEnv(t, f)
		lacks := c.needs == NeedsRdmaRead && f.Server.Limits().RdmaReadLevels&levelUnderTest == 0 ||
			c.needs == NeedsSever && f.Sever == nil
		switch {
		case skip != "" && c.needs != NeedsNothing && !lacks:
			t.Errorf("skipped as %q, but the provider claims what the case needs", skip)
		case skip != "":
			t.Skip(skip)
		case lacks:
			t.Fatalf("the provider lacks what the case needs, and no skip says so")
		}
		c.run(e)
	})
	if !t.Failed() {
		if err := goleak.Find(before); err != nil {
			t.Errorf("goroutines outlive the NICs: %v", err)
		}
		if now := openFiles(t); now > files {
			t.Errorf("%d file descriptors outlive the NICs", now-files)
		}
	}
}

// openFiles counts the process's open file descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
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

// patience is how long the kit waits for what must happen. Nothing is decided
// by it but failure.
const patience = 20 * time.Second

// env is a running case.
type env struct {
	t        testing.TB
	f        *Fabric
	client   *end
	server   *end
	services int // discriminators used
}

func newEnv(t testing.TB, f *Fabric) *env {
	e := &env{t: t, f: f}
	e.client = newEnd(e, "client", f.Client)
	e.server = newEnd(e, "server", f.Server)
	t.Cleanup(func() {
		e.client.close()
		e.server.close()
	})
	return e
}

// service returns an address that no other connection of the case uses.
func (e *env) service() via.Address {
	e.services++
	return e.f.Address(fmt.Sprintf("service-%d", e.services))
}

// check fails the case if err is not nil.
func (e *env) check(err error, doing string) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("%s: %v", doing, err)
	}
}

// wants fails the case unless err wraps a return code.
func (e *env) wants(err, code error, doing string) {
	e.t.Helper()
	if !errors.Is(err, code) {
		e.t.Fatalf("%s: got error %v, want %v", doing, err, code)
	}
}

// until polls both ends until cond holds. The calling goroutine drives the VIs
// of both.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	e.untilBy(what, cond, e.client, e.server)
}

// untilBy polls some ends until cond holds.
func (e *env) untilBy(what string, cond func() bool, ends ...*end) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		moved := 0
		for _, x := range ends {
			moved += x.poll()
		}
		if moved == 0 {
			if time.Now().After(deadline) {
				e.t.Fatalf("waited in vain for %s; client: %v; server: %v", what, e.client, e.server)
			}
			pause()
		}
	}
}

// quiet polls both ends for a while in which nothing may complete.
func (e *env) quiet(what string) {
	e.t.Helper()
	for range 200 {
		if n := e.client.poll() + e.server.poll(); n != 0 {
			e.t.Fatalf("%s: %d completions, want none; client: %v; server: %v", what, n, e.client, e.server)
		}
		pause()
	}
}
