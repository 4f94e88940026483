package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/initiator"
)

// readiness is what /readyz answers.
type readiness struct {
	Schema string      `json:"schema"` // viablk.ready/v1
	Ready  bool        `json:"ready"`
	Checks []readCheck `json:"checks"`
}

// notDraining is the check that fails while clients are to leave.
const notDraining = "not draining"

// readCheck is one condition of readiness.
type readCheck struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Text   string `json:"text,omitempty"`
}

// newReadiness checks whether clients can use the disks. A target may be away
// for some time, which its clients wait for. A process that has started has all
// of its exports open. A process whose reload failed serves on, with other
// exports or certificates than its administrator wants: reload says so, and is
// empty after one that succeeded.
func newReadiness(p *processStatus, started, draining bool, reload string, away time.Duration) readiness {
	r := readiness{Schema: "viablk.ready/v1", Ready: true}
	r.add("started", started, fmt.Sprintf("%d exports are open", len(p.Exports)))
	r.add(notDraining, !draining, "")
	r.add("last reload", reload == "", reload)
	for i := range p.Initiators {
		x := &p.Initiators[i]
		r.addDisk(p.nameOf(i), x.State, x.Error, x.DisconnectedSeconds, away)
	}
	for i := range p.Disks {
		if d := &p.Disks[i]; d.State != "" {
			r.addDisk(d.Name, d.State, d.Reason, d.WaitingSeconds, away)
		}
	}
	return r
}

// addDisk adds the condition of a disk that another process has, whose requests
// have waited for some seconds.
func (r *readiness) addDisk(name string, state initiator.State, why string, seconds float64, away time.Duration) {
	waited := time.Duration(seconds * float64(time.Second))
	passed := state == initiator.StateConnected || state == initiator.StateWaiting && waited <= away
	text := string(state)
	if why != "" {
		text += ": " + why
	}
	r.add("disk "+name, passed, text)
}

// add adds a condition.
func (r *readiness) add(name string, passed bool, text string) {
	r.Checks = append(r.Checks, readCheck{name, passed, text})
	r.Ready = r.Ready && passed
}

// draining reports whether clients are to leave.
func (r *readiness) draining() bool {
	return slices.ContainsFunc(r.Checks, func(c readCheck) bool { return c.Name == notDraining && !c.Passed })
}

// nameOf returns the name of the export that is remote disk i.
func (p *processStatus) nameOf(i int) string {
	if i < len(p.Exports) { // in the order of the exports
		return p.Exports[i].Name
	}
	return p.Initiators[i].Export
}
