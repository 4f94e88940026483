package block

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/ring"
)

// Engine is what a device of an [Executor] does with one request.
type Engine interface {
	// Attempt runs r to its end, sets r.Err and returns true if r certainly
	// needs no waiting; otherwise it returns false and r goes to Execute. It
	// may record its progress in r.Token, which is zero before. The owner of
	// the queue calls it, so owners of different queues call it at the same
	// time.
	Attempt(r *Request) bool

	// Execute runs r to its end, blocking as it must, and returns the result.
	// It is called by many goroutines at a time, except for Flush, which is
	// called by one at a time.
	Execute(r *Request) error
}

// Executor runs the blocking operations of a device for all of its queues, on a
// bounded number of goroutines.
//
// A request travels
//
//	1 Submit    the owner of the queue tries [Engine.Attempt], and for a write
//	            [InlineEngine.ExecuteInline] while that is short
//	2 Kick      what is left goes to the executor, as one batch
//	3 work      a worker takes it, runs [Engine.Execute]
//	4 complete  the worker hands it back to its queue, and wakes the owner if
//	            that sleeps
//	5 Reap      the owner collects
//
// Steps 1, 2 and 5 are sequential in one queue; 3 and 4 run in parallel.
//
// Flushes are committed in groups: one worker at a time runs a Flush, for every
// Flush that arrived before it started, on whichever queue. The others wait
// without occupying a worker.
//
// Workers start when there is work for them and stop with [Executor.Close].
// Their number depends on how long operations take. As long as they take longer
// than waking a thread, a worker that starts wakes the next one while work is
// left. While they are short (writes to the page cache), the workers that are
// awake do all of them, and wake a sleeping owner once for many. Writes of 4
// KiB to a file at depth 32 on two processors: 6.0 µs each if every operation
// may get a worker of its own, 3.3 µs so, of which pwrite takes 2.9 µs.
//
// An operation among short ones may still block. The owner of the waiting queue
// detects that after shortTimeout and makes the executor treat operations as
// long.
//
// A panic of [Engine.Execute] is an EIO of its request alone. After that of a
// Flush or FUA no later one succeeds.
//
// With [Executor.Guard], what reads or changes data holds its range meanwhile.
// A request that has to wait for its range does so without occupying a worker.
type Executor struct {
	engine   Engine
	panicked Latch // of a Flush or FUA that panicked: what is durable is not known

	// +checklocks:mu
	limit  int // workers
	short  atomic.Bool
	ranges *Ranges // nil without Guard

	inline inlinePolicy

	mu sync.Mutex
	// +checklocks:mu
	wokenAt time.Time // when a worker was last woken
	// +checklocks:mu
	average time.Duration // of recent operations
	// +checklocks:mu
	wake sync.Cond
	// +checklocks:mu
	ready ring.Ring[task]
	// +checklocks:mu
	flushes []task // waiting for the next group commit
	// +checklocks:mu
	group []task // those of the commit in progress
	// +checklocks:mu
	flushing bool
	// +checklocks:mu
	idle int // workers that sleep and have not been woken
	// +checklocks:mu
	workers int
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	parking []*parked // not in use

	stopped sync.WaitGroup
}

// task is one request on its way through the executor.
type task struct {
	queue *executorQueue
	r     *Request
	done  int64 // bytes of its range
	held  bool  // it has what it needs to go on from there

	aborts uint32 // of the queue, when the task was kicked
}

// DefaultWorkers is the number of workers of an executor unless the caller sets
// one.
const DefaultWorkers = 32

const (
	// shortOperation is what waking a thread costs: shorter operations are not
	// spread over threads.
	shortOperation = 8 * time.Microsecond

	// shortTimeout is how long an owner waits for short operations.
	shortTimeout = 100 * time.Microsecond

	// batchOfShort is after how many short operations a worker announces them.
	// With four times as many ahead of it, it is given help.
	batchOfShort = 16
)

// NewExecutor returns an executor that runs requests by engine on at most
// workers goroutines; 0 means [DefaultWorkers].
func NewExecutor(engine Engine, workers int) *Executor {
	if workers <= 0 {
		workers = DefaultWorkers
	}
	e := &Executor{engine: engine, limit: workers, average: time.Millisecond}
	e.inline.engine, _ = engine.(InlineEngine)
	e.wake.L = &e.mu
	return e
}

// Close stops the workers and waits for them. Every queue must have been closed
// before.
func (e *Executor) Close() {
	e.mu.Lock()
	e.closed = true
	e.wake.Broadcast()
	e.mu.Unlock()
	e.stopped.Wait()
}

// Guard has requests hold their range of the disk while the engine executes
// them. In Attempt the engine holds its ranges itself. It is called before
// the first queue is opened.
func (e *Executor) Guard(ranges *Ranges) { e.ranges = ranges }

// OnLost has f called, once, when a Flush or FUA panics: earlier writes may be
// lost. It is called before the first queue is opened.
func (e *Executor) OnLost(f func(cause error)) { e.panicked.Lost = f }

// start hands a batch of q to the workers.
func (e *Executor) start(q *executorQueue, batch []*Request) {
	defer contain.Shared()
	aborts := q.aborts.Load()
	e.mu.Lock()
	for _, r := range batch {
		if r.Op == Flush {
			e.flushes = append(e.flushes, task{queue: q, r: r, aborts: aborts})
		} else {
			e.enqueue(task{queue: q, r: r, aborts: aborts})
		}
	}
	e.addedLocked()
	e.mu.Unlock()
	loop.Offload()
}

// discard removes the tasks of q that no worker has and no range is held for,
// and appends their requests to dst.
func (e *Executor) discard(q *executorQueue, dst []*Request) []*Request {
	defer contain.Shared()
	e.mu.Lock()
	defer e.mu.Unlock()
	for range e.ready.Len() {
		t := e.ready.Pop()
		if t.queue != q || t.held || t.done > 0 {
			e.ready.Push(t)
			continue
		}
		dst = append(dst, t.r)
	}
	e.flushes = slices.DeleteFunc(e.flushes, func(t task) bool {
		if t.queue == q {
			dst = append(dst, t.r)
		}
		return t.queue == q
	})
	return dst
}

// addedLocked wakes a worker for new work if those that are awake do not
// suffice.
//
// +checklocks:e.mu
func (e *Executor) addedLocked() {
	awake := e.workers - e.idle
	if e.flushing {
		awake-- // a flush is never short
	}
	if !e.short.Load() || awake == 0 || e.ready.Len() > 4*batchOfShort*awake {
		e.wakeLocked()
	}
}

// assumeLong treats operations as long until they are measured short again. An
// owner calls it after shortTimeout.
func (e *Executor) assumeLong() {
	defer contain.Shared()
	e.mu.Lock()
	e.average = time.Millisecond
	e.short.Store(false)
	e.wakeLocked()
	e.mu.Unlock()
}

// recordLocked adds the duration of an operation to the average. When
// operations are no longer short, it wakes a worker, which wakes the others.
//
// +checklocks:e.mu
func (e *Executor) recordLocked(d time.Duration) {
	e.average += (min(d, time.Millisecond) - e.average) / 8
	short := e.average < shortOperation
	if was := e.short.Load(); was != short {
		e.short.Store(short)
		if was {
			e.wakeLocked()
		}
	}
}

// wakeLocked wakes or starts one more worker, if there is work for it.
//
// +checklocks:e.mu
func (e *Executor) wakeLocked() {
	switch {
	case !e.runnableLocked():
	case e.idle > 0:
		e.idle--
		e.wokenAt = time.Now()
		e.wake.Signal()
	case e.workers < e.limit:
		e.workers++
		e.wokenAt = time.Now()
		e.stopped.Add(1)
		go e.work()
	}
}

// +checklocks:e.mu
func (e *Executor) runnableLocked() bool {
	return !e.ready.Empty() || len(e.flushes) > 0 && !e.flushing
}

// work is a worker.
func (e *Executor) work() {
	defer e.stopped.Done()
	e.mu.Lock()
	woken := true
	for {
		if !e.runnableLocked() {
			if e.closed {
				e.mu.Unlock()
				return
			}
			e.idle++
			e.wake.Wait()
			woken = true
			continue
		}
		if len(e.flushes) > 0 && !e.flushing {
			e.flushLocked()
		} else {
			e.runLocked(woken)
		}
		woken = false
	}
}

// runLocked runs one task, and the short ones of the same queue that follow,
// without the lock.
//
// +checklocks:e.mu
func (e *Executor) runLocked(woken bool) {
	t := e.ready.Pop()
	if woken {
		e.inline.recordWakeup(time.Since(e.wokenAt))
		if !e.short.Load() {
			e.wakeLocked()
		}
	}
	q := t.queue
	for quiet := 1; ; quiet++ {
		e.mu.Unlock()
		began := time.Now()
		if !e.run(&t) {
			e.mu.Lock()
			break // the task waits for its range
		}
		elapsed := time.Since(began)
		mayDefer := elapsed < shortOperation && quiet < batchOfShort
		q.complete(t.r, mayDefer)
		e.mu.Lock()
		e.recordLocked(elapsed)
		if !mayDefer {
			return
		}
		if e.ready.Empty() || e.ready.First().queue != q || !e.short.Load() {
			break
		}
		t = e.ready.Pop()
	}
	e.mu.Unlock()
	q.announce()
	e.mu.Lock()
}

// flushLocked runs one group commit, without the lock.
//
// +checklocks:e.mu
func (e *Executor) flushLocked() {
	e.flushing = true
	e.group, e.flushes = e.flushes, e.group[:0]
	e.wakeLocked() // for what is ready meanwhile
	group := e.group
	e.mu.Unlock()
	err := e.call(group[0].r)
	for i, t := range group {
		t.r.Err = err
		group[i] = task{}
		t.queue.complete(t.r, false)
	}
	e.mu.Lock()
	e.flushing = false
}

// enqueue adds a task that a worker will execute, with e.mu held.
//
// +checklocks:e.mu
func (e *Executor) enqueue(t task) {
	if e.ready.Full() {
		e.ready.Grow(max(64, 2*e.ready.Cap()))
	}
	e.ready.Push(t)
}
