package roce

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via/roce/port"
)

// never is a deadline that does not expire.
const never = time.Duration(math.MaxInt64)

// epoch is time 0 of clock.
var epoch = time.Now()

// clock returns the monotonic time since epoch.
func clock() time.Duration { return time.Since(epoch) }

// shardBits is the number of low bits of a queue pair number that name the
// shard: log2 of port.Shards.
const shardBits = 6

// shard is one socket of an endpoint with the links whose packets it receives.
// It is safe for concurrent use. Its owner alone accesses the engine, which
// acquire returns.
type shard struct {
	endpoint    *endpoint
	index       int
	port        port.Shard // its FD and Counters; the engine sends and receives
	ownership   ownership
	activity    activity
	pending     pendingLinks
	misroutedIn misroutedQueue // from other shards
	counters    shardCounters
	failure     atomic.Pointer[contain.Panic] // nil unless the shard has failed
	engine      engine                        // of the goroutine that has acquired the shard
}

func newShard(e *endpoint, index int, p port.Shard) *shard {
	s := &shard{endpoint: e, index: index, port: p}
	s.activity.due.Store(int64(never))
	s.engine.init(s)
	return s
}

// ownership is which goroutine may access the engine of a shard.
type ownership struct {
	state  atomic.Uint32
	passes atomic.Uint64 // completed
}

// States of a shard.
const (
	shardIdle   = iota
	shardOwned  // a goroutine owns it
	shardRerun  // owned; the owner runs another pass before it releases it
	shardFailed // for good
)

// activity is what the goroutine of the endpoint watches a shard by.
type activity struct {
	consumerPolls atomic.Uint64 // polls by consumers, which show that they are active
	sleepers      atomic.Int32  // completion queues that wait for a wake-up
	due           atomic.Int64  // earliest deadline of a queue pair, or before
}

// tryAcquire acquires the shard if it is idle, and returns nil if it is not.
// From then on until the release a deferred function contains panics.
func (s *shard) tryAcquire() *engine {
	if s.ownership.state.CompareAndSwap(shardIdle, shardOwned) {
		return &s.engine
	}
	return nil
}

// acquireWithin is tryAcquire with a number of attempts.
func (s *shard) acquireWithin(times int) *engine {
	for range times {
		if g := s.tryAcquire(); g != nil {
			return g
		}
		if s.ownership.state.Load() == shardFailed {
			return nil
		}
		runtime.Gosched()
	}
	return nil
}

// acquire acquires the shard and waits briefly if it is owned: its owner blocks
// only for room in the device, for a bounded time. It returns nil if the shard
// has failed.
func (s *shard) acquire() *engine {
	for i := 0; ; i++ {
		if g := s.tryAcquire(); g != nil {
			return g
		}
		if s.ownership.state.Load() == shardFailed {
			return nil
		}
		backOff(i)
	}
}

// release releases the shard. In state shardRerun it runs another pass first.
func (g *engine) release() {
	o := &g.shard.ownership
	for {
		o.passes.Add(1)
		if o.state.CompareAndSwap(shardOwned, shardIdle) {
			break
		}
		o.state.Store(shardOwned)
		g.pass(clock(), skipReceive)
	}
}

// run runs a pass, or makes the owner of the shard run one.
func (s *shard) run() {
	g := s.tryAcquire()
	for ; g == nil; g = s.tryAcquire() {
		o := &s.ownership
		if o.state.CompareAndSwap(shardOwned, shardRerun) {
			return
		}
		if state := o.state.Load(); state == shardRerun || state == shardFailed {
			return
		}
	}
	defer g.contain()
	g.pass(clock(), skipReceive)
	g.release()
}

// quiesce waits for the end of the pass in progress, if there is one.
func (s *shard) quiesce() {
	o := &s.ownership
	ended := o.passes.Load()
	for i := 0; o.inPass() && o.passes.Load() == ended; i++ {
		backOff(i)
	}
}

// inPass reports whether the shard is owned.
func (o *ownership) inPass() bool {
	state := o.state.Load()
	return state == shardOwned || state == shardRerun
}

// backOff yields, and sleeps after 100 attempts.
func backOff(i int) {
	if i < 100 {
		runtime.Gosched()
		return
	}
	time.Sleep(20 * time.Microsecond)
}

// pendingLinks lists links that the next pass attends to: they have posts, or
// their peer has disconnected.
type pendingLinks struct{ first atomic.Pointer[link] }

// schedule lists a link for the next pass, once.
func (s *shard) schedule(l *link) {
	if l.notices.scheduled.Swap(true) {
		return
	}
	for {
		first := s.pending.first.Load()
		l.notices.next = first
		if s.pending.first.CompareAndSwap(first, l) {
			return
		}
	}
}

// removeAll empties the list and returns its first link.
func (p *pendingLinks) removeAll() *link { return p.first.Swap(nil) }

// removed returns the next link of a list that was removed. From then on the
// link can be listed again; the caller then sees all posts of before.
func (n *notices) removed() (next *link) {
	next = n.next
	n.scheduled.Store(false)
	return next
}
