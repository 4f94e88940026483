package block

import (
	"sync"
	"sync/atomic"
	"time"
)

// executed is a queue of an [Executor].
//
// The owner sleeps on an eventfd. A worker writes to it only if the owner has
// armed the queue, and the first one that does disarms it, so a sleep costs at
// most one write and an owner that is awake costs none. That a queue is armed
// and that it has nothing finished are decided under one lock: a completion
// comes either before Arm, which then refuses the sleep, or after it, and is
// then announced. While operations are short the sleep has a deadline, and
// workers may put the announcement off for a few operations.
type executed struct {
	*Buffers
	executor *Executor
	event    *eventFD

	// The owner's.
	batch     []*Request // submitted and not kicked
	immediate fifo       // finished in Submit
	held      int        // requests submitted and not reaped
	depth     int
	allowance int    // bytes that the owner may still write itself before Kick
	kicked    uint64 // requests ever handed to the executor
	sleeping  bool   // Arm was the last word
	patient   bool   // and it set a deadline
	since     time.Time
	idle      int    // calls of Reap since it returned something
	owed      uint64 // writes to the event that workers did or will do

	available atomic.Int32 // requests in finished, as a hint without the lock

	mu         sync.Mutex
	finished   fifo
	completed  uint64 // requests ever finished
	armed      bool
	lenient    bool // the announcement may be put off
	announcing int  // workers about to write to the event
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
	event, err := newEventFD()
	if err != nil {
		_ = buffers.Close()
		return nil, err
	}
	return &executed{
		Buffers:   buffers,
		executor:  e,
		event:     event,
		batch:     make([]*Request, 0, depth),
		immediate: newFIFO(depth),
		finished:  newFIFO(depth),
		depth:     depth,
		allowance: promptBytes,
	}, nil
}

// spinsOfPatience is how often an owner calls Reap in about the time of patience.
const spinsOfPatience = 4096

func (q *executed) Submit(r *Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	r.Token, r.Err = 0, nil
	if q.executor.engine.Attempt(r) || q.prompt(r) {
		q.immediate.push(r)
	} else {
		q.batch = append(q.batch, r)
	}
	return true
}

func (q *executed) Kick() {
	q.allowance = promptBytes
	if len(q.batch) == 0 {
		return
	}
	q.kicked += uint64(len(q.batch))
	q.executor.start(q, q.batch)
	clear(q.batch)
	q.batch = q.batch[:0]
}

func (q *executed) Reap(dst []*Request) int {
	slept := q.sleeping
	if slept {
		q.rise()
	}
	if q.owed > 0 {
		q.owed -= min(q.owed, q.event.drain())
	}
	n := q.immediate.pop(dst)
	if n < len(dst) && q.available.Load() > 0 {
		q.mu.Lock()
		got := q.finished.pop(dst[n:])
		q.available.Store(int32(q.finished.n))
		q.mu.Unlock()
		n += got
	}
	q.held -= n
	if n > 0 || q.held == 0 {
		q.idle = 0
	} else {
		q.watch(slept)
	}
	return n
}

// watch is called when nothing has finished: it hurries an executor that counted
// on short operations in vain. An owner that does not sleep reads no clock.
func (q *executed) watch(slept bool) {
	q.idle++
	if slept && q.patient && time.Since(q.since) >= patience || q.idle >= spinsOfPatience {
		q.idle = 0
		if q.executor.short.Load() {
			q.executor.hurry()
		}
	}
}

// rise ends the sleep: either the queue is still armed, or a worker disarmed it
// and owes the event a write.
func (q *executed) rise() {
	q.sleeping = false
	q.mu.Lock()
	if !q.armed {
		q.owed++
	}
	q.armed = false
	q.mu.Unlock()
}

func (q *executed) Arm() (time.Duration, bool) {
	if q.sleeping {
		q.rise()
	}
	if q.immediate.n > 0 {
		return 0, false
	}
	q.patient = q.held > 0 && q.executor.short.Load()
	q.mu.Lock()
	q.armed = q.finished.n == 0
	q.lenient = q.patient
	q.sleeping = q.armed
	q.mu.Unlock()
	if !q.sleeping {
		return 0, false
	}
	if q.patient {
		q.since = time.Now()
		return patience, true
	}
	return q.Tidy(), true
}

func (q *executed) FD() int { return q.event.fd }

// complete hands r back. A worker calls it; r is the owner's from then on. With
// mayWait, the worker calls announce soon.
func (q *executed) complete(r *Request, mayWait bool) {
	q.mu.Lock()
	q.finished.push(r)
	q.available.Store(int32(q.finished.n))
	q.completed++
	if q.closing != nil {
		q.closing.Signal()
	}
	if mayWait && q.lenient {
		q.mu.Unlock()
		return
	}
	q.announceLocked()
}

// announce wakes the owner if it sleeps and something is finished. The queue may
// have been closed meanwhile.
func (q *executed) announce() {
	q.mu.Lock()
	if q.closing != nil || q.finished.n == 0 {
		q.mu.Unlock()
		return
	}
	q.announceLocked()
}

// announceLocked wakes the owner if it sleeps, and drops the lock.
func (q *executed) announceLocked() {
	if !q.armed {
		q.mu.Unlock()
		return
	}
	q.armed = false
	q.announcing++
	q.mu.Unlock()
	q.event.signal()
	q.mu.Lock()
	q.announcing--
	if q.closing != nil {
		q.closing.Signal()
	}
	q.mu.Unlock()
}

// Close waits for the requests that workers have, and forgets all others.
func (q *executed) Close() error {
	if q.closing != nil {
		return nil
	}
	q.mu.Lock()
	q.armed = false
	q.closing = sync.NewCond(&q.mu)
	for q.completed != q.kicked || q.announcing > 0 {
		q.closing.Wait()
	}
	q.mu.Unlock()
	err := q.event.close()
	if e := q.Buffers.Close(); err == nil {
		err = e
	}
	return err
}
