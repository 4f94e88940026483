package hook

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// latencyBuckets is the length of a latency histogram: the last bucket takes
// everything from 2^39 ns, nine minutes.
const latencyBuckets = 40

// OpCounters are the counters of one opcode.
type OpCounters struct {
	Posts       uint64 `json:"posts"`
	Completions uint64 `json:"completions"` // reported by the link; flushed works are not
	Errors      uint64 `json:"errors"`      // completions with an error bit
	Bytes       uint64 `json:"bytes"`       // transferred
	NoRoom      uint64 `json:"no_room"`     // posts that the link did not take yet

	// Latency[i] counts completions between 2^i and 2^(i+1) nanoseconds after
	// the post. For receives that is mostly how long they waited for a message.
	Latency [latencyBuckets]uint64 `json:"latency_log2_ns"`
}

// Quantile returns an upper bound of the latency that a share q of the
// completions, between 0 and 1, kept; 0 if there were none.
func (c *OpCounters) Quantile(q float64) time.Duration {
	total := uint64(0)
	for _, n := range c.Latency {
		total += n
	}
	seen := uint64(0)
	for i, n := range c.Latency {
		if seen += n; n != 0 && float64(seen) >= q*float64(total) {
			return time.Duration(uint64(2) << i)
		}
	}
	return 0
}

// Counters are the counters of a provider at one moment.
type Counters struct {
	Send      OpCounters `json:"send"`
	RdmaWrite OpCounters `json:"rdma_write"`
	RdmaRead  OpCounters `json:"rdma_read"`
	Recv      OpCounters `json:"recv"`

	Doorbells       uint64 `json:"doorbells"` // rung by the user agent
	Polls           uint64 `json:"polls"`     // of completion queues
	EmptyPolls      uint64 `json:"empty_polls"`
	Arms            uint64 `json:"arms"`
	Links           uint64 `json:"links"` // connections made
	LinksBroken     uint64 `json:"links_broken"`
	Events          uint64 `json:"events"` // of links, that broke nothing
	Registrations   uint64 `json:"registrations"`
	Deregistrations uint64 `json:"deregistrations"`
}

// StatsProvider is a provider that counts. Its methods are safe for concurrent
// use.
type StatsProvider struct {
	layer
	c statsTap
}

// Stats returns a provider that counts what p does. Counting does not allocate;
// it reads the clock at each post and each poll that returns something.
func Stats(p via.Provider) *StatsProvider {
	s := &StatsProvider{}
	s.Provider, s.tap = p, &s.c
	return s
}

// Counters returns the counters now; counters of one event may differ by it.
func (s *StatsProvider) Counters() Counters {
	t := &s.c
	return Counters{
		Send: t.ops[via.OpSend].load(), RdmaWrite: t.ops[via.OpRdmaWrite].load(),
		RdmaRead: t.ops[via.OpRdmaRead].load(), Recv: t.ops[via.OpRecv].load(),
		Doorbells: t.doorbells.Load(), Polls: t.polls.Load(), EmptyPolls: t.empty.Load(), Arms: t.arms.Load(),
		Links: t.links.Load(), LinksBroken: t.broken.Load(), Events: t.events.Load(),
		Registrations: t.registrations.Load(), Deregistrations: t.deregistrations.Load(),
	}
}

// opCounters are OpCounters while they count.
type opCounters struct {
	posts, completions, errors, bytes, noRoom atomic.Uint64
	latency                                   [latencyBuckets]atomic.Uint64
}

func (o *opCounters) load() OpCounters {
	c := OpCounters{
		Posts: o.posts.Load(), Completions: o.completions.Load(), Errors: o.errors.Load(),
		Bytes: o.bytes.Load(), NoRoom: o.noRoom.Load(),
	}
	for i := range o.latency {
		c.Latency[i] = o.latency[i].Load()
	}
	return c
}

type statsTap struct {
	passive
	ops                            [4]opCounters
	doorbells, polls, empty, arms  atomic.Uint64
	links, broken, events          atomic.Uint64
	registrations, deregistrations atomic.Uint64
}

func (t *statsTap) registered(*adapter, *via.Memory)   { t.registrations.Add(1) }
func (t *statsTap) deregistered(*adapter, *via.Memory) { t.deregistrations.Add(1) }
func (t *statsTap) linked(*link)                       { t.links.Add(1) }
func (t *statsTap) rung(*link)                         { t.doorbells.Add(1) }
func (t *statsTap) refused(_ *link, w *via.Work)       { t.ops[w.Op].noRoom.Add(1) }

func (t *statsTap) posted(_ *link, k *ticket, w *via.Work) {
	k.at = time.Now()
	t.ops[w.Op].posts.Add(1)
}

func (t *statsTap) arm(q *queue) bool {
	t.arms.Add(1)
	return q.AdapterCQ.Arm()
}

func (t *statsTap) poll(q *queue, dst []via.Done) int {
	n := q.AdapterCQ.Poll(dst)
	t.polls.Add(1)
	if n == 0 {
		t.empty.Add(1)
		return 0
	}
	now := time.Now()
	for i := range dst[:n] {
		d := &dst[i]
		l, k := q.of(d)
		if l == nil {
			continue // of a link that is closed
		}
		if k == nil {
			t.told(d.Event)
			continue
		}
		k.out = false
		o := &t.ops[k.op]
		o.completions.Add(1)
		o.bytes.Add(uint64(d.Work.Moved))
		if d.Work.Status.Failed() {
			o.errors.Add(1)
		}
		o.latency[bucket(now.Sub(k.at))].Add(1)
	}
	return n
}

// told counts an event of a link.
func (t *statsTap) told(e *via.Event) {
	if e.Broken {
		t.broken.Add(1)
	} else {
		t.events.Add(1)
	}
}

// bucket returns the histogram bucket of a latency.
func bucket(d time.Duration) int {
	return min(max(bits.Len64(uint64(max(d, 1)))-1, 0), latencyBuckets-1)
}
