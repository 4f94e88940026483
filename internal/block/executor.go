package block

import (
	"sync"
	"sync/atomic"
	"time"
)

// Engine is what a device of an [Executor] does with one request.
type Engine interface {
	// Attempt runs r to its end, sets r.Err and returns true if r certainly needs
	// no waiting; otherwise it returns false and r goes to Execute. It may leave a
	// note on its progress in r.Token, which is zero before. The owner of the queue
	// calls it, so owners of different queues call it at the same time.
	Attempt(r *Request) bool

	// Execute runs r to its end, blocking as it must, and returns the result. It
	// is called by many goroutines at a time, except for Flush, which is called by
	// one at a time.
	Execute(r *Request) error
}

// Executor runs the blocking operations of a device for all of its queues, on a
// bounded number of goroutines.
//
// A request travels
//
//	1 Submit    the owner of the queue tries [Engine.Attempt], and for a write
//	            [Prompter.Prompt] while that is short
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
// Workers start when there is work for them and stop with [Executor.Close]. How
// many work depends on how long operations take. As long as they take longer than
// waking a thread, a worker that starts wakes the next one while work is left.
// While they are short (writes to the page cache), the workers that are awake do
// all of them, and wake a sleeping owner once for many. Writes of 4 KiB to a file
// at depth 32 on two processors: 6.0 µs each if every operation may get a worker
// of its own, 3.3 µs so, of which pwrite takes 2.9 µs.
//
// An operation among short ones may block all the same. Then the owner of a queue
// that waits notices, after patience, and has the executor work as if operations
// took long.
//
// With [Executor.Guard], what reads or changes data holds its range meanwhile.
// A request that has to wait for its range does so without occupying a worker.
type Executor struct {
	engine Engine
	limit  int // workers
	short  atomic.Bool
	ranges *Ranges // nil without Guard

	prompts prompts

	mu       sync.Mutex
	roused   time.Time     // when a worker was last woken
	average  time.Duration // of recent operations
	wake     sync.Cond
	ready    taskRing
	flushes  []task // waiting for the next group commit
	group    []task // those of the commit under way
	flushing bool
	idle     int // workers that sleep and have not been woken
	workers  int
	closed   bool
	parking  []*parked // not in use

	stopped sync.WaitGroup
}

// task is one request on its way through the executor.
type task struct {
	queue *executed
	r     *Request
	done  int64 // bytes of its range
	held  bool  // it has what it needs to go on from there
}

// DefaultWorkers is the number of workers of an executor that nobody told.
const DefaultWorkers = 32

const (
	// shortOperation is what waking a thread costs: shorter operations are not
	// spread over threads.
	shortOperation = 8 * time.Microsecond

	// patience is how long an owner waits for short operations.
	patience = 100 * time.Microsecond

	// batchOfShort is after how many short operations a worker announces them. With
	// four times as many ahead of it, it is given help.
	batchOfShort = 16
)

// NewExecutor returns an executor that runs requests by engine on at most
// workers goroutines; 0 means [DefaultWorkers].
func NewExecutor(engine Engine, workers int) *Executor {
	if workers <= 0 {
		workers = DefaultWorkers
	}
	e := &Executor{engine: engine, limit: workers, average: time.Millisecond}
	e.prompts.engine, _ = engine.(Prompter)
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

// Guard has requests hold their range of the disk while the engine executes them.
// What the engine does in Attempt it guards itself. It is called before the first
// queue is opened.
func (e *Executor) Guard(ranges *Ranges) { e.ranges = ranges }

// start hands a batch of q to the workers.
func (e *Executor) start(q *executed, batch []*Request) {
	e.mu.Lock()
	for _, r := range batch {
		if r.Op == Flush {
			e.flushes = append(e.flushes, task{queue: q, r: r})
		} else {
			e.ready.push(task{queue: q, r: r})
		}
	}
	e.addedLocked()
	e.mu.Unlock()
}

// addedLocked wakes a worker for new work if those that are awake do not suffice.
func (e *Executor) addedLocked() {
	awake := e.workers - e.idle
	if e.flushing {
		awake-- // a flush is never short
	}
	if !e.short.Load() || awake == 0 || e.ready.n > 4*batchOfShort*awake {
		e.wakeLocked()
	}
}

// hurry is called by an owner that has waited for long enough.
func (e *Executor) hurry() {
	e.mu.Lock()
	e.average = time.Millisecond
	e.short.Store(false)
	e.wakeLocked()
	e.mu.Unlock()
}

// tookLocked learns how long an operation took. When it finds that operations are
// not short any more, it wakes a worker, which wakes the others.
func (e *Executor) tookLocked(d time.Duration) {
	e.average += (min(d, time.Millisecond) - e.average) / 8
	short := e.average < shortOperation
	if was := e.short.Load(); was != short {
		e.short.Store(short)
		if was {
			e.wakeLocked()
		}
	}
}

// wakeLocked sets one more worker to work, if there is work and a worker.
func (e *Executor) wakeLocked() {
	switch {
	case !e.runnableLocked():
	case e.idle > 0:
		e.idle--
		e.roused = time.Now()
		e.wake.Signal()
	case e.workers < e.limit:
		e.workers++
		e.roused = time.Now()
		e.stopped.Add(1)
		go e.work()
	}
}

func (e *Executor) runnableLocked() bool {
	return e.ready.n > 0 || len(e.flushes) > 0 && !e.flushing
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

// runLocked runs one task, and the short ones of the same queue that follow. It
// drops the lock while it does.
func (e *Executor) runLocked(woken bool) {
	t := e.ready.pop()
	if woken {
		e.prompts.woke(time.Since(e.roused))
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
			break // it is not this worker's any more
		}
		took := time.Since(began)
		mayWait := took < shortOperation && quiet < batchOfShort
		q.complete(t.r, mayWait)
		e.mu.Lock()
		e.tookLocked(took)
		if !mayWait {
			return
		}
		if e.ready.n == 0 || e.ready.peek().queue != q || !e.short.Load() {
			break
		}
		t = e.ready.pop()
	}
	e.mu.Unlock()
	q.announce()
	e.mu.Lock()
}

// flushLocked runs one group commit. It drops the lock while it does.
func (e *Executor) flushLocked() {
	e.flushing = true
	e.group, e.flushes = e.flushes, e.group[:0]
	e.wakeLocked() // for what is ready meanwhile
	group := e.group
	e.mu.Unlock()
	err := e.engine.Execute(group[0].r)
	for i, t := range group {
		t.r.Err = err
		group[i] = task{}
		t.queue.complete(t.r, false)
	}
	e.mu.Lock()
	e.flushing = false
}

// taskRing is a ring of tasks that grows to the most that ever waited.
type taskRing struct {
	items []task // a power of two
	head  int    // next to pop; taken modulo the ring
	n     int
}

func (t *taskRing) push(x task) {
	if t.n == len(t.items) {
		grown := make([]task, max(64, 2*len(t.items)))
		for i := range t.n {
			grown[i] = t.items[(t.head+i)&(len(t.items)-1)]
		}
		t.items, t.head = grown, 0
	}
	t.items[(t.head+t.n)&(len(t.items)-1)] = x
	t.n++
}

func (t *taskRing) peek() *task { return &t.items[t.head&(len(t.items)-1)] }

func (t *taskRing) pop() task {
	at := t.head & (len(t.items) - 1)
	x := t.items[at]
	t.items[at] = task{}
	t.head++
	t.n--
	return x
}
