package block

import (
	"sync/atomic"
	"time"
)

// InlineEngine is an Engine that can run some requests on the goroutine of the
// queue's owner although they may block: writes to the page cache are usually a
// copy, and shorter than a hand-over to a worker.
type InlineEngine interface {
	Engine

	// ExecuteInline runs r to its end, sets r.Err and returns true if that is
	// likely to be short; otherwise it returns false and leaves r to Execute.
	// It is called like Attempt, after that.
	ExecuteInline(r *Request) bool
}

const (
	// inlineBytes bounds the bytes that the owner writes itself between two
	// calls of Kick: a larger batch is worth a worker, because the copies then
	// use another processor.
	inlineBytes = 64 << 10

	// A request that takes longer than longInline shows that the disk may block
	// the owner, which has a peer to answer: the next requests go to workers.
	longInline = time.Millisecond

	// Bounds of how many requests go to workers then; each penalty doubles the
	// last.
	minOffloads = 64
	maxOffloads = 1024
)

// inlinePolicy decides whether owners run requests inline. It affects speed
// only, so concurrent updates by owners of several queues may be lost.
//
// A request that is the only one of its queue is run by the owner as long as
// the disk does not block: a hand-over costs a wake-up and saves nothing. With
// several, a worker may run one while the owner continues with others; that
// pays when they take longer than the wake-up.
type inlinePolicy struct {
	engine     InlineEngine   // nil if there is none
	wakeup     atomic.Int64   // of a worker, recent average in nanoseconds
	average    atomic.Int64   // of recent requests, in nanoseconds
	blocked    offloadPenalty // of all requests
	concurrent offloadPenalty // of those that are not alone
}

// offloadPenalty is the number of requests that go to workers before one may
// run inline again.
type offloadPenalty struct{ left, last atomic.Int64 }

// expired reports whether the penalty has expired. Each call reduces it by one
// request.
func (d *offloadPenalty) expired() bool {
	if d.left.Load() <= 0 {
		return true
	}
	d.left.Add(-1)
	return false
}

// impose starts a penalty twice as long as the last.
func (d *offloadPenalty) impose() {
	n := min(max(2*d.last.Load(), minOffloads), maxOffloads)
	d.last.Store(n)
	d.left.Store(n)
}

// reduce shortens the next penalty by one request.
func (d *offloadPenalty) reduce() {
	if d.last.Load() > 0 {
		d.last.Add(-1)
	}
}

// allows reports whether a request may run inline. alone means that its queue
// has no other request.
func (p *inlinePolicy) allows(alone bool) bool {
	return p.blocked.expired() && (alone || p.concurrent.expired())
}

// record adds the duration of an inline request.
func (p *inlinePolicy) record(d time.Duration) {
	if d >= longInline {
		p.blocked.impose()
		return
	}
	p.blocked.reduce()
	limit := max(shortOperation, time.Duration(p.wakeup.Load()))
	average := time.Duration(p.average.Load())
	average += (min(d, 4*limit) - average) / 8
	p.average.Store(int64(average))
	switch {
	case average < limit:
		p.concurrent.reduce()
	case p.concurrent.left.Load() <= 0:
		p.concurrent.impose()
		p.average.Store(0)
	}
}

// longestWakeup bounds one sample: a longer wake-up was delayed by something
// else.
const longestWakeup = 200 * time.Microsecond

// recordWakeup adds the wake-up latency of a worker.
func (p *inlinePolicy) recordWakeup(d time.Duration) {
	wakeup := time.Duration(p.wakeup.Load())
	p.wakeup.Store(int64(wakeup + (min(d, longestWakeup)-wakeup)/8))
}

// tryInline runs a write on the owner's goroutine if that is fastest.
func (q *executorQueue) tryInline(r *Request) bool {
	p := &q.executor.inline
	if p.engine == nil || r.Op != Write || r.Length > int64(q.allowance) || !p.allows(q.held == 1) {
		return false
	}
	began := time.Now()
	if !p.engine.ExecuteInline(r) {
		return false
	}
	q.allowance -= int(r.Length)
	p.record(time.Since(began))
	return true
}
