package block

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is an Engine made of two functions; nil means that of a disk that does
// nothing.
type engine struct {
	attempt func(*Request) bool
	execute func(*Request) error
}

func (e *engine) Attempt(r *Request) bool {
	return e.attempt != nil && e.attempt(r)
}

func (e *engine) Execute(r *Request) error {
	if e.execute == nil {
		return nil
	}
	return e.execute(r)
}

// watchdog is how long a test waits for what must come. It is not a measure of
// anything.
const watchdog = 30 * time.Second

func newExecuted(t testing.TB, e *Executor, depth int) *executorQueue {
	t.Helper()
	q, err := e.NewQueue(depth, granule)
	if err != nil {
		t.Fatal(err)
	}
	return q.(*executorQueue)
}

// sleep polls the queue and reports whether it became readable.
func sleep(t testing.TB, q Queue, timeout time.Duration) bool {
	t.Helper()
	return new(collector).sleep(t, q, timeout)
}

// collect reaps n requests, asleep in between.
func collect(t testing.TB, q Queue, n int) {
	t.Helper()
	new(collector).collect(t, q, n)
}

// collector is the memory of collect, for tests that count allocations.
type collector struct {
	got [16]*Request
	fds [1]unix.PollFd

	timeout unix.Timespec
}

func (c *collector) sleep(t testing.TB, q Queue, timeout time.Duration) bool {
	c.fds[0] = unix.PollFd{Fd: int32(q.FD()), Events: unix.POLLIN}
	for {
		c.timeout = unix.NsecToTimespec(int64(timeout))
		n, err := unix.Ppoll(c.fds[:], &c.timeout, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

func (c *collector) collect(t testing.TB, q Queue, n int) {
	for n > 0 {
		k := q.Reap(c.got[:])
		n -= k
		if k > 0 || n == 0 {
			continue
		}
		d, ok := q.Arm()
		switch {
		case ok && d >= 0:
			c.sleep(t, q, d)
		case ok && !c.sleep(t, q, watchdog):
			t.Fatalf("the wake-up for %d requests is lost", n)
		}
	}
}

func TestNoWakeUpIsLost(t *testing.T) {
	e := NewExecutor(&engine{
		attempt: func(r *Request) bool { return r.User%5 == 0 },
		execute: func(r *Request) error {
			if r.User%256 == 1 {
				time.Sleep(time.Millisecond) // now and then one is not short
			}
			return nil
		},
	}, 4)
	defer e.Close()
	var owners sync.WaitGroup
	for seed := range uint64(4) {
		owners.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			q := newExecuted(t, e, 32)
			defer q.Close()
			requests := make([]Request, 32)
			for range 1500 {
				n := 1 + random.IntN(32)
				for i := range n {
					requests[i] = Request{Op: Op(1 + random.IntN(5)), User: random.Uint64()}
					if !q.Submit(&requests[i]) {
						t.Error("refused within the depth")
						return
					}
					if random.IntN(4) == 0 {
						q.Kick()
					}
				}
				q.Kick()
				collect(t, q, n)
			}
		})
	}
	owners.Wait()
}

func TestSleepCostsOneWriteAndWakingNone(t *testing.T) {
	gate := make(chan struct{})
	e := NewExecutor(&engine{execute: func(*Request) error { <-gate; return nil }}, 8)
	defer e.Close()
	q := newExecuted(t, e, 8)
	defer q.Close()
	requests := make([]Request, 8)
	submit := func() {
		for i := range requests {
			requests[i] = Request{Op: Read}
			q.Submit(&requests[i])
		}
		q.Kick()
	}
	finished := func() {
		for range requests {
			gate <- struct{}{}
		}
		for q.available.Load() != int32(len(requests)) {
			time.Sleep(time.Millisecond)
		}
	}

	submit()
	finished()
	if n := eventfd.Drain(q.event); n != 0 {
		t.Errorf("%d writes for an owner that is awake", n)
	}
	collect(t, q, len(requests))

	submit()
	if _, ok := q.Arm(); !ok {
		t.Fatal("Arm refuses with nothing finished")
	}
	finished()
	if !sleep(t, q, watchdog) {
		t.Fatal("no wake-up")
	}
	if n := eventfd.Drain(q.event); n != 1 {
		t.Errorf("%d writes for one sleep", n)
	}
	eventfd.Ring(q.event) // as it was
	collect(t, q, len(requests))
	if _, ok := q.Arm(); !ok || sleep(t, q, 0) {
		t.Error("an empty queue stays readable")
	}
}

func TestArmRefusesWhileSomethingIsFinished(t *testing.T) {
	e := NewExecutor(&engine{attempt: func(*Request) bool { return true }}, 1)
	defer e.Close()
	q := newExecuted(t, e, 2)
	defer q.Close()
	var r Request
	q.Submit(&r)
	if _, ok := q.Arm(); ok {
		t.Error("Arm lets the owner sleep on a finished request")
	}
	if q.Reap(make([]*Request, 1)) != 1 {
		t.Error("the request is not returned")
	}
}

// makeShort teaches the executor that operations are short.
func makeShort(t *testing.T, e *Executor, q *executorQueue) {
	t.Helper()
	requests := make([]Request, 8)
	for start := time.Now(); !e.short.Load(); {
		if time.Since(start) > watchdog {
			t.Fatal("the executor does not learn that operations are short")
		}
		for i := range requests {
			requests[i] = Request{Op: Write}
			q.Submit(&requests[i])
		}
		q.Kick()
		collect(t, q, len(requests))
	}
}

func TestLongOperationAmongShortOnes(t *testing.T) {
	for name, sleeps := range map[string]bool{"owner sleeps": true, "owner spins": false} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			e := NewExecutor(&engine{execute: func(r *Request) error {
				if r.Op == Read {
					<-gate
				}
				return nil
			}}, 4)
			defer e.Close()
			q := newExecuted(t, e, 32)
			defer q.Close()
			makeShort(t, e, q)

			// One that blocks between others: whether these were done before,
			// and their announcement put off, or wait behind it, the owner gets
			// them.
			requests := make([]Request, 32)
			for i := range requests {
				requests[i] = Request{Op: Write}
				if i == 5 {
					requests[i].Op = Read
				}
				q.Submit(&requests[i])
			}
			q.Kick()
			if sleeps {
				collect(t, q, 31)
			} else {
				got := make([]*Request, 32)
				for n, start := 0, time.Now(); n < 31; n += q.Reap(got) {
					if time.Since(start) > watchdog {
						t.Fatalf("%d of 31 requests return while one blocks", n)
					}
				}
			}
			close(gate)
			collect(t, q, 1)
		})
	}
}

func TestFlushesAreCommittedInGroups(t *testing.T) {
	var running, most, flushes atomic.Int32
	gate, entered := make(chan struct{}), make(chan struct{}, 16)
	failure := errors.New("disk is gone")
	e := NewExecutor(&engine{execute: func(r *Request) error {
		if r.Op != Flush {
			return nil
		}
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		entered <- struct{}{}
		<-gate
		if flushes.Add(1) == 2 {
			return failure
		}
		return nil
	}}, 8)
	defer e.Close()
	queues := [2]*executorQueue{newExecuted(t, e, 8), newExecuted(t, e, 8)}
	defer queues[0].Close()
	defer queues[1].Close()

	first := Request{Op: Flush}
	queues[0].Submit(&first)
	queues[0].Kick()
	<-entered
	// These arrive while the first runs: it does not cover them, one does.
	later := make([]Request, 6)
	for i := range later {
		later[i].Op = Flush
		queues[i%2].Submit(&later[i])
		queues[i%2].Kick()
	}
	write := Request{Op: Write}
	queues[1].Submit(&write)
	queues[1].Kick()
	for queues[1].available.Load() == 0 {
		time.Sleep(time.Millisecond) // the write passes the flushes
	}
	gate <- struct{}{}
	<-entered
	gate <- struct{}{}
	collect(t, queues[0], 4)
	collect(t, queues[1], 4)
	if n := flushes.Load(); n != 2 || most.Load() != 1 {
		t.Errorf("%d flushes ran, %d at a time; want 2, 1 at a time", n, most.Load())
	}
	if first.Err != nil || write.Err != nil {
		t.Errorf("first flush: %v, write: %v", first.Err, write.Err)
	}
	for i := range later {
		if later[i].Err != failure {
			t.Errorf("flush %d: %v, want the error of its group", i, later[i].Err)
		}
	}
}

func TestCloseWaitsForWorkers(t *testing.T) {
	begun, gate := make(chan struct{}, 8), make(chan struct{})
	var finished atomic.Int32
	e := NewExecutor(&engine{execute: func(*Request) error {
		begun <- struct{}{}
		<-gate
		finished.Add(1)
		return nil
	}}, 2)
	q := newExecuted(t, e, 8)
	requests := make([]Request, 8)
	for i := range requests {
		if i == 6 {
			q.Kick() // what follows is not kicked
		}
		requests[i].Op = Write
		q.Submit(&requests[i])
	}
	<-begun
	<-begun // both workers have one
	q.Arm()
	closed := make(chan error)
	go func() { closed <- q.Close() }()
	for e.queued() > 0 { // Close has dropped what no worker has
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		select {
		case <-closed:
			t.Fatal("Close returned with requests in flight")
		case gate <- struct{}{}:
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := finished.Load(); n != 2 {
		t.Errorf("%d requests ran, want 2", n)
	}
	e.Close()
}

// queued returns how many tasks wait for a worker.
func (e *Executor) queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready.Len()
}

func TestDepths(t *testing.T) {
	e := NewExecutor(&engine{}, 1)
	defer e.Close()
	for _, depth := range []int{-1, 0, MaximumDepth + 1} {
		if _, err := e.NewQueue(depth, granule); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("depth %d: %v", depth, err)
		}
		if _, err := NewInlineQueue(depth, granule, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("inline depth %d: %v", depth, err)
		}
	}
}

func TestWorkersAreBounded(t *testing.T) {
	var running, most atomic.Int32
	var mu sync.Mutex
	full := make(chan struct{})
	e := NewExecutor(&engine{execute: func(*Request) error {
		mu.Lock()
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
			if n == 3 {
				close(full) // all three workers run at the same time
			}
		}
		mu.Unlock()
		<-full
		running.Add(-1)
		return nil
	}}, 3)
	defer e.Close()
	q := newExecuted(t, e, 64)
	defer q.Close()
	requests := make([]Request, 64)
	for i := range requests {
		requests[i].Op = Read
		q.Submit(&requests[i])
	}
	q.Kick()
	collect(t, q, len(requests))
	if most.Load() != 3 {
		t.Errorf("%d workers at a time, want 3", most.Load())
	}
}

func TestExecutorAllocatesNothing(t *testing.T) {
	e := NewExecutor(&engine{}, 2)
	defer e.Close()
	q := newExecuted(t, e, 16)
	defer q.Close()
	var c collector
	requests := make([]Request, 16)
	round := func() {
		for i := range requests {
			requests[i].Op = Op(1 + i%3)
			q.Submit(&requests[i])
		}
		q.Kick()
		c.collect(t, q, len(requests))
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations per 16 requests, want 0", n)
	}
}

func BenchmarkExecutor(b *testing.B) {
	e := NewExecutor(&engine{}, 0)
	defer e.Close()
	q := newExecuted(b, e, 32)
	defer q.Close()
	var c collector
	requests := make([]Request, 32)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(requests) {
		for i := range requests {
			requests[i].Op = Write
			q.Submit(&requests[i])
		}
		q.Kick()
		c.collect(b, q, len(requests))
	}
}

// TestAbortDropsWhatNoWorkerHas: a request that waits for a worker, for its
// range or for Kick has no effect; one that a worker has ends as always, and
// requests of other queues do too.
func TestAbortDropsWhatNoWorkerHas(t *testing.T) {
	begun, gate := make(chan uint64, 16), make(chan struct{})
	e := NewExecutor(&engine{execute: func(r *Request) error {
		begun <- r.User
		<-gate
		return nil
	}}, 2)
	defer e.Close()
	ranges := NewRanges()
	e.Guard(ranges)
	q, other := newExecuted(t, e, 8), newExecuted(t, e, 8)
	defer q.Close()
	defer other.Close()
	write := func(user uint64, unit int64) *Request {
		return &Request{Op: Write, Offset: unit * AtomicUnit, Length: AtomicUnit, User: user}
	}
	if !ranges.TryAcquire(3*AtomicUnit, AtomicUnit, true) {
		t.Fatal("the range is not free")
	}
	q.Submit(write(1, 3)) // its range is taken
	q.Kick()
	for _, r := range []*Request{write(2, 0), write(3, 1)} {
		q.Submit(r)
		q.Kick()
		if user := <-begun; user != r.User { // it has a worker
			t.Fatalf("request %d begins, not %d", user, r.User)
		}
	}
	q.Submit(write(4, 4))
	q.Submit(&Request{Op: Flush, User: 5})
	q.Kick()
	other.Submit(write(6, 5))
	other.Kick()
	q.Submit(write(7, 6)) // not kicked
	q.Abort()
	ended := make(map[uint64]error)
	for _, r := range reapEnded(q) {
		ended[r.User] = r.Err
	}
	if len(ended) != 3 {
		t.Errorf("%v ended at once, not those without a worker", ended)
	}
	ranges.Release(3*AtomicUnit, AtomicUnit, true)
	close(gate)
	for len(ended) < 6 {
		sleep(t, q, time.Second)
		for _, r := range reapEnded(q) {
			ended[r.User] = r.Err
		}
	}
	for user, err := range ended {
		if dropped := user != 2 && user != 3; errors.Is(err, syscall.ECANCELED) != dropped || !dropped && err != nil {
			t.Errorf("request %d: %v", user, err)
		}
	}
	collect(t, other, 1)
	if user := <-begun; user != 6 || len(begun) != 0 {
		t.Errorf("request %d began, and %d more", user, len(begun))
	}
}

// reapEnded returns what Reap has.
func reapEnded(q Queue) []*Request {
	q.Arm()
	dst := make([]*Request, 16)
	return dst[:q.Reap(dst)]
}
