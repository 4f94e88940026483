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

	// A request that takes longer than longPrompt shows that the disk may block, and its
	// owner with it, who has a peer to answer: the next requests go to workers.
	longPrompt = time.Millisecond

	// So many do, more each time.
	leastDetour = 64
	mostDetour  = 1024
)

// prompts decide whether requests are run by owners. As it is about speed alone, what
// owners of several queues do at a time may get lost.
//
// A request that is the only one of its queue is run by the owner as long as the disk
// does not block: to hand it over costs a wake-up and saves nothing. Of several, a worker
// may run one while the owner sees to others; that pays when they take longer than the
// wake-up.
type prompts struct {
	engine  Prompter     // nil if there is none
	wakeup  atomic.Int64 // of a worker, of late, in nanoseconds
	average atomic.Int64 // of recent requests, in nanoseconds
	blocked detour       // of all requests
	crowded detour       // of those that are not alone
}

// detour is requests that go to workers before the next one that may not.
type detour struct{ left, last atomic.Int64 }

// over reports whether the detour is. Each question shortens it.
func (d *detour) over() bool {
	if d.left.Load() <= 0 {
		return true
	}
	d.left.Add(-1)
	return false
}

// begin begins a detour that is longer than the last.
func (d *detour) begin() {
	n := min(max(2*d.last.Load(), leastDetour), mostDetour)
	d.last.Store(n)
	d.left.Store(n)
}

// forgive makes the next detour shorter, but not at once.
func (d *detour) forgive() {
	if d.last.Load() > 0 {
		d.last.Add(-1)
	}
}

// may reports whether a request may be run now, which is the only one of its queue or
// is not.
func (p *prompts) may(alone bool) bool {
	return p.blocked.over() && (alone || p.crowded.over())
}

// took learns how long a request took.
func (p *prompts) took(d time.Duration) {
	if d >= longPrompt {
		p.blocked.begin()
		return
	}
	p.blocked.forgive()
	limit := max(shortOperation, time.Duration(p.wakeup.Load()))
	average := time.Duration(p.average.Load())
	average += (min(d, 4*limit) - average) / 8
	p.average.Store(int64(average))
	switch {
	case average < limit:
		p.crowded.forgive()
	case p.crowded.left.Load() <= 0:
		p.crowded.begin()
		p.average.Store(0)
	}
}

// longestWakeup bounds what is learned of one wake-up: what takes longer was kept waiting
// by something else.
const longestWakeup = 200 * time.Microsecond

// woke learns how long a worker took to wake up.
func (p *prompts) woke(d time.Duration) {
	wakeup := time.Duration(p.wakeup.Load())
	p.wakeup.Store(int64(wakeup + (min(d, longestWakeup)-wakeup)/8))
}

// prompt runs a write on the owner's goroutine if that is what is fastest.
func (q *executed) prompt(r *Request) bool {
	p := &q.executor.prompts
	if p.engine == nil || r.Op != Write || r.Length > int64(q.allowance) || !p.may(q.held == 1) {
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
