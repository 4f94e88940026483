package block

import (
	"sync/atomic"
	"time"
)

// Prompter is an Engine that can run some requests on the goroutine of the queue's
// owner although they may block: writes to the page cache, which are a copy as a
// rule, and shorter than handing them to a worker.
type Prompter interface {
	Engine

	// Prompt runs r to its end, sets r.Err and returns true if that is likely to be
	// short; otherwise it returns false and leaves r to Execute. It is called like
	// Attempt, after that.
	Prompt(r *Request) bool
}

const (
	// promptBytes bounds what the owner does itself between two calls of Kick: what is
	// more is worth a worker, because the copies take another processor.
	promptBytes = 64 << 10

	// A request that takes longer than slowPrompt shows that the disk is not as fast
	// as it was: so many of the next requests go to workers, more each time.
	slowPrompt  = 50 * time.Microsecond
	leastDetour = 64
	mostDetour  = 1024
)

// prompts decide whether requests are run by owners. As it is about speed alone, what
// owners of several queues do at a time may get lost.
type prompts struct {
	engine  Prompter     // nil if there is none
	detour  atomic.Int64 // requests that go to workers before the next that does not
	penalty atomic.Int64 // the last detour
	average atomic.Int64 // of recent requests, in nanoseconds
}

// may reports whether a request may be run now. Each refusal shortens the detour.
func (p *prompts) may() bool {
	if p.detour.Load() == 0 {
		return true
	}
	p.detour.Add(-1)
	return false
}

// took learns how long a request took.
func (p *prompts) took(d time.Duration) {
	average := time.Duration(p.average.Load())
	average += (min(d, slowPrompt) - average) / 8
	p.average.Store(int64(average))
	if d < slowPrompt && average < shortOperation {
		if average < shortOperation/2 && p.penalty.Load() > 0 {
			p.penalty.Add(-1) // forgiven, but not at once
		}
		return
	}
	detour := min(max(2*p.penalty.Load(), leastDetour), mostDetour)
	p.penalty.Store(detour)
	p.average.Store(0)
	p.detour.Store(detour)
}

// prompt runs a write on the owner's goroutine if that is what is fastest.
func (q *executed) prompt(r *Request) bool {
	p := &q.executor.prompts
	if p.engine == nil || r.Op != Write || r.Length > int64(q.allowance) || !p.may() {
		return false
	}
	began := time.Now()
	if !p.engine.Prompt(r) {
		return false
	}
	q.allowance -= int(r.Length)
	p.took(time.Since(began))
	return true
}
