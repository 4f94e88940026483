package block

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/ring"
)

// executorQueue is a queue of an [Executor].
//
// The owner sleeps on an eventfd. A worker writes to it only if the owner has
// armed the queue, and the first one that does disarms it, so a sleep costs at
// most one write and an owner that is awake costs none. One lock guards armed
// and finished: a completion happens either before Arm, which then refuses the
// sleep, or after it, and then rings the eventfd. While operations are short
// the sleep has a deadline, and workers may defer the wake-up for a few
// operations.
type executorQueue struct {
	*Buffers
	executor *Executor
	event    int // eventfd: workers ring it, the owner drains it

	// The owner's.
	batch     []*Request          // submitted and not kicked
	immediate ring.Ring[*Request] // finished in Submit
	held      int                 // requests submitted and not reaped
	depth     int
	allowance int    // bytes that the owner may still write itself before Kick
	kicked    uint64 // requests ever handed to the executor
	sleeping  bool   // Arm was called after the last Reap
	timed     bool   // Arm returned a deadline
	since     time.Time
	idle      int    // calls of Reap since it returned something
	owed      uint64 // writes to the event that workers did or will do

	available atomic.Int32  // requests in finished, as a hint without the lock
	aborts    atomic.Uint32 // calls of Abort; workers begin no task of before the last

	mu sync.Mutex
	// +checklocks:mu
	finished ring.Ring[*Request]
	// +checklocks:mu
	completed uint64 // requests ever finished
	// +checklocks:mu
	armed bool
	// +checklocks:mu
	mayDefer bool // the wake-up may be deferred
	// +checklocks:mu
	announcing int // workers about to write to the event
	closing    *sync.Cond
}

// NewQueue opens a queue of the given depth whose memory is a [Buffers] of the
// given limit, in bytes.
func (e *Executor) NewQueue(depth, memory int) (Queue, error) {
	if err := CheckDepth(depth); err != nil {
		return nil, err
	}
	buffers, err := NewBuffers(memory)
	if err != nil {
		return nil, err
	}
	event, err := eventfd.New()
	if err != nil {
		_ = buffers.Close()
		return nil, err
	}
	return &executorQueue{
		Buffers:   buffers,
		executor:  e,
		event:     event,
		batch:     make([]*Request, 0, depth),
		immediate: ring.New[*Request](depth),
		finished:  ring.New[*Request](depth),
		depth:     depth,
		allowance: inlineBytes,
	}, nil
}

// errDropped is the result of a request that Abort dropped.
const errDropped = syscall.ECANCELED

// reapsPerTimeout is about how many calls of Reap fit into shortTimeout.
const reapsPerTimeout = 4096

func (q *executorQueue) Submit(r *Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	r.Token, r.Err = 0, nil
	if q.executor.engine.Attempt(r) || q.tryInline(r) {
		q.immediate.Push(r)
	} else {
		q.batch = append(q.batch, r)
	}
	return true
}

func (q *executorQueue) Kick() {
	defer contain.Shared()
	q.allowance = inlineBytes
	if len(q.batch) == 0 {
		return
	}
	q.kicked += uint64(len(q.batch))
	q.executor.start(q, q.batch)
	clear(q.batch)
	q.batch = q.batch[:0]
}

func (q *executorQueue) Reap(dst []*Request) int {
	defer contain.Shared()
	slept := q.sleeping
	if slept {
		q.disarm()
	}
	if q.owed > 0 {
		q.owed -= min(q.owed, eventfd.Drain(q.event))
	}
	n := q.immediate.PopInto(dst)
	if n < len(dst) && q.available.Load() > 0 {
		q.mu.Lock()
		got := q.finished.PopInto(dst[n:])
		q.available.Store(int32(q.finished.Len()))
		q.mu.Unlock()
		n += got
	}
	q.held -= n
	if n > 0 || q.held == 0 {
		q.idle = 0
	} else {
		q.detectStall(slept)
	}
	return n
}

// detectStall runs when Reap found nothing: if operations that were expected to
// be short did not finish within shortTimeout, the executor treats them as
// long. An owner that polls reads no clock.
func (q *executorQueue) detectStall(slept bool) {
	q.idle++
	if slept && q.timed && time.Since(q.since) >= shortTimeout || q.idle >= reapsPerTimeout {
		q.idle = 0
		if q.executor.short.Load() {
			q.executor.assumeLong()
		}
	}
}

// disarm ends the sleep: either the queue is still armed, or a worker has
// disarmed it and will write to the event.
func (q *executorQueue) disarm() {
	q.sleeping = false
	q.mu.Lock()
	if !q.armed {
		q.owed++
	}
	q.armed = false
	q.mu.Unlock()
}

func (q *executorQueue) Arm() (time.Duration, bool) {
	defer contain.Shared()
	if q.sleeping {
		q.disarm()
	}
	if !q.immediate.Empty() {
		return 0, false
	}
	q.timed = q.held > 0 && q.executor.short.Load()
	q.mu.Lock()
	q.armed = q.finished.Empty()
	q.mayDefer = q.timed
	q.sleeping = q.armed
	q.mu.Unlock()
	if !q.sleeping {
		return 0, false
	}
	if q.timed {
		q.since = time.Now()
		return shortTimeout, true
	}
	return q.Tidy(), true
}

func (q *executorQueue) FD() int { return q.event }

// complete hands r back to the owner. A worker calls it. With mayDefer the
// worker calls announce soon.
func (q *executorQueue) complete(r *Request, mayDefer bool) {
	defer contain.Shared()
	q.mu.Lock()
	q.finished.Push(r)
	q.available.Store(int32(q.finished.Len()))
	q.completed++
	if q.closing != nil {
		q.closing.Signal()
	}
	if mayDefer && q.mayDefer {
		q.mu.Unlock()
		return
	}
	q.announceLocked()
}

// announce wakes the owner if it sleeps and something is finished. The queue
// may be closed by then.
func (q *executorQueue) announce() {
	defer contain.Shared()
	q.mu.Lock()
	if q.closing != nil || q.finished.Empty() {
		q.mu.Unlock()
		return
	}
	q.announceLocked()
}

// announceLocked wakes the owner if it sleeps, and releases the lock.
//
// +checklocksrelease:q.mu
func (q *executorQueue) announceLocked() {
	if !q.armed {
		q.mu.Unlock()
		return
	}
	q.armed = false
	q.announcing++
	q.mu.Unlock()
	eventfd.Ring(q.event)
	q.mu.Lock()
	q.announcing--
	if q.closing != nil {
		q.closing.Signal()
	}
	q.mu.Unlock()
}

// Abort implements [Queue]. A request that waits for its range stays until that
// is free. The queue executes what is submitted later: a wrapper may have begun
// it before.
func (q *executorQueue) Abort() {
	defer contain.Shared()
	q.aborts.Add(1)
	kept := len(q.batch)
	q.batch = q.executor.discard(q, q.batch)
	q.kicked -= uint64(len(q.batch) - kept)
	for _, r := range q.batch {
		r.Err = errDropped
		q.immediate.Push(r)
	}
	clear(q.batch)
	q.batch = q.batch[:0]
}

// Close waits for the requests that workers execute, and discards all others.
func (q *executorQueue) Close() error {
	defer contain.Shared()
	if q.closing != nil {
		return nil
	}
	q.Abort()
	q.mu.Lock()
	q.armed = false
	q.closing = sync.NewCond(&q.mu)
	for q.completed != q.kicked || q.announcing > 0 {
		q.closing.Wait()
	}
	q.mu.Unlock()
	err := eventfd.Close(q.event)
	if e := q.Buffers.Close(); err == nil {
		err = e
	}
	return err
}
