package block

import "sync"

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
//	1 Submit    the owner of the queue tries [Engine.Attempt]
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
// Workers start when there is work for them and stop with [Executor.Close]. One
// worker is woken per batch; it wakes the next one if work is left when it
// starts, so that a batch of operations that turn out to be short is not spread
// over threads that cost more than they do.
type Executor struct {
	engine Engine
	limit  int // workers

	mu       sync.Mutex
	wake     sync.Cond
	ready    taskRing
	flushes  []task // waiting for the next group commit
	group    []task // those of the commit under way
	flushing bool
	idle     int // workers that sleep and have not been woken
	workers  int
	closed   bool

	stopped sync.WaitGroup
}

// task is one request on its way through the executor.
type task struct {
	queue *executed
	r     *Request
}

// DefaultWorkers is the number of workers of an executor that nobody told.
const DefaultWorkers = 32

// NewExecutor returns an executor that runs requests by engine on at most
// workers goroutines; 0 means [DefaultWorkers].
func NewExecutor(engine Engine, workers int) *Executor {
	if workers <= 0 {
		workers = DefaultWorkers
	}
	e := &Executor{engine: engine, limit: workers}
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

// start hands a batch of q to the workers.
func (e *Executor) start(q *executed, batch []*Request) {
	e.mu.Lock()
	for _, r := range batch {
		if r.Op == Flush {
			e.flushes = append(e.flushes, task{q, r})
		} else {
			e.ready.push(task{q, r})
		}
	}
	e.wakeLocked()
	e.mu.Unlock()
}

// wakeLocked sets one more worker to work, if there is work and a worker.
func (e *Executor) wakeLocked() {
	switch {
	case !e.runnableLocked():
	case e.idle > 0:
		e.idle--
		e.wake.Signal()
	case e.workers < e.limit:
		e.workers++
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
			e.flushLocked(woken)
		} else {
			t := e.ready.pop()
			if woken {
				e.wakeLocked()
			}
			e.mu.Unlock()
			t.r.Err = e.engine.Execute(t.r)
			t.queue.complete(t.r)
			e.mu.Lock()
		}
		woken = false
	}
}

// flushLocked runs one group commit. It drops the lock while it does.
func (e *Executor) flushLocked(woken bool) {
	e.flushing = true
	e.group, e.flushes = e.flushes, e.group[:0]
	if woken {
		e.wakeLocked()
	}
	group := e.group
	e.mu.Unlock()
	err := e.engine.Execute(group[0].r)
	for i, t := range group {
		t.r.Err = err
		group[i] = task{}
		t.queue.complete(t.r)
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

func (t *taskRing) pop() task {
	at := t.head & (len(t.items) - 1)
	x := t.items[at]
	t.items[at] = task{}
	t.head++
	t.n--
	return x
}
