package main

import (
	"errors"
	"sync"
)

// phase is what a process does beside serving, one thing at a time.
type phase int

const (
	phaseServing  phase = iota
	phaseTakeover       // a successor asks for what the process serves
	phaseDraining       // an administrator has drained the process, which stays
	phaseEnding
)

// Why a phase cannot begin.
var (
	errTakenOver = errors.New("another process takes over")
	errDraining  = errors.New("the process drains: no client comes and nothing changes any more")
	errEnding    = errors.New("the process ends")
)

// phases keeps what a process does.
type phases struct {
	mu sync.Mutex
	// +checklocks:mu
	now phase
}

// begin begins a phase of a process that serves; started runs before another
// phase can begin.
func (p *phases) begin(next phase, started func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.now {
	case phaseTakeover:
		return errTakenOver
	case phaseDraining:
		return errDraining
	case phaseEnding:
		return errEnding
	}
	p.now = next
	started()
	return nil
}

// resume ends a takeover that failed: the process serves on.
func (p *phases) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == phaseTakeover {
		p.now = phaseServing
	}
}

// end begins the last phase.
func (p *phases) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = phaseEnding
}
