package viatest

import (
	"fmt"
	"strings"

	"github.com/viablk/viablk/via"
)

// Skips names what a provider does not run, with the reason of each: a case
// ("BigRead"), a row of the error matrix ("07-MessageCorrupt"), one variant of
// it ("16-ConnectionLost: cut in a message"), or any of them at one reliability
// level ("BigRead/reception").
type Skips map[string]string

// Capability is something that a provider may lack.
type Capability int

// The capabilities, as bits. A case that needs some may be skipped only where
// one of them lacks.
const (
	NeedsRdmaRead  Capability = 1 << iota // Limits.RdmaReadLevels
	NeedsDiscovery                        // NIC.Discover is not ErrNotSupported
	NeedsFaults                           // LinkConfig.Faults is asked
)

// reason returns why a case or a row is skipped at a level, or "".
func (s Skips) reason(name string, at via.ReliabilityLevel) string {
	if r := s[name]; r != "" {
		return r
	}
	return s[name+"/"+levelName(at)]
}

// problems lists what is wrong with the skips, whatever the provider.
func (s Skips) problems() []string {
	known := make(map[string]via.ReliabilityLevel)
	for _, c := range Cases() {
		known[c.Name] = c.Reliability
	}
	for _, r := range matrix() {
		known[r.String()] = anyLevel
		for _, v := range r.variants {
			known[r.String()+": "+v.name] = anyLevel
		}
	}
	var out []string
	for key, reason := range s {
		name, level, narrow := strings.Cut(key, "/")
		at, ok := known[name]
		if narrow {
			ok = false
			for _, l := range levels {
				ok = ok || at&l != 0 && level == levelName(l)
			}
		}
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("skip of an unknown case %q", key))
		case reason == "":
			out = append(out, fmt.Sprintf("skip of case %q without a reason", key))
		}
	}
	return out
}

// skipped says whether to skip, and fails the test where the provider's claims
// do not agree.
func (k *kit) skipped(e *env, name string, needs Capability) bool {
	e.t.Helper()
	reason := k.skips.reason(name, e.level)
	switch lacks := k.lacks(e, needs); {
	case reason != "" && needs != 0 && !lacks:
		e.t.Fatalf("skipped as %q, but the provider claims what the case needs", reason)
	case reason == "" && lacks:
		e.t.Fatalf("the provider lacks what the case needs, and no skip says so")
	}
	return reason != ""
}

// lacks says whether the provider lacks one of some capabilities at the level
// under test.
func (k *kit) lacks(e *env, c Capability) bool {
	return c&NeedsRdmaRead != 0 && e.f.Server.Limits().RdmaReadLevels&e.level == 0 ||
		c&NeedsDiscovery != 0 && lacksDiscovery(e.f.Client) ||
		c&NeedsFaults != 0 && k.faultless
}
