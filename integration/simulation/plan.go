package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/viablk/viablk/initiator"
)

// Plan is a run: a seed determines it, and it determines the run.
type Plan struct {
	Seed      uint64
	Hosts     int // paths between a client and the target
	Servers   int // of the target: one, or one for each path, with the same sessions
	Fabric    Fabric
	Blocks    int
	Speed     time.Duration // of the disk: of a request, at most
	Slow      time.Duration // of some requests, at most; 0: as the others
	Volatile  bool          // a cache, which ends with the target, is in front of the disk
	Inline    int           // bytes of payload inside a message
	Pool      int           // bytes of bounce memory of a queue
	Depth     int           // commands in flight per connection, at the target
	Keepalive time.Duration // interval
	Clients   []Client
	Faults    []Fault
}

// Client is an initiator: it attaches the disk, uses it, and leaves, until it
// has made its requests.
type Client struct {
	Begins   int // when so many requests of others have begun
	Queues   int
	Depth    int
	Requests int
	Session  int // requests until it leaves and attaches the disk again
	Leaves   int // it leaves with requests in flight once in so many waits
	Longest  int // request, in blocks
	ReadOnly bool
	Alone    bool // it asks to be the only client
	Preempts bool
	Reopens  bool          // it goes on with a disk that others wrote to
	Timeout  time.Duration // of the loss of its target
	Idle     time.Duration // between two batches of requests, at most
	Policy   initiator.PathPolicy
	Digest   bool // travels with payload
}

// NewPlan returns the plan of a seed, with about so many requests.
func NewPlan(seed uint64, requests int) Plan {
	r := rand.New(rand.NewPCG(seed, 4))
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	span := func(of ...time.Duration) time.Duration { return of[r.IntN(len(of))] }
	p := Plan{
		Seed: seed, Hosts: 1, Servers: 1, Blocks: one(2, 4, 8, 24), Speed: span(20*time.Microsecond, 200*time.Microsecond, 2*time.Millisecond),
		Slow:   span(0, 0, 10*time.Millisecond, 10*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond),
		Inline: one(512, 4096, 4096, 8192), Pool: one(64<<10, 256<<10), Depth: one(2, 8, 32),
		Keepalive: span(50*time.Millisecond, 200*time.Millisecond),
		Fabric: Fabric{
			Latency: span(time.Microsecond, 10*time.Microsecond), Jitter: span(time.Microsecond, 50*time.Microsecond),
			Copy: span(2*time.Microsecond, 50*time.Microsecond), Shared: r.IntN(2) == 0, Silence: span(300*time.Millisecond, time.Second),
		},
	}
	for i := range one(1, 1, 2, 3) {
		c := Client{
			Queues: one(1, 2, 4), Depth: one(1, 4, 16), Longest: one(1, 2, 16), Leaves: one(20, 100, 2000, 5000, 5000), Session: one(50, requests, requests),
			Timeout: span(100*time.Millisecond, time.Second, initiator.Forever, initiator.Forever),
			Idle:    span(0, 20*time.Millisecond, 100*time.Millisecond),
		}
		if i > 0 {
			c.Begins = r.IntN(one(30, 250))
			c.ReadOnly = r.IntN(3) == 0
			c.Preempts = !c.ReadOnly && r.IntN(2) == 0
		}
		p.Clients = append(p.Clients, c)
	}
	if r.IntN(4) == 0 { // a crowd: most requests wait for others
		p.Blocks, p.Slow = one(1, 2), span(10*time.Millisecond, 100*time.Millisecond)
		p.Clients = p.Clients[:1]
		c := &p.Clients[0]
		c.Queues, c.Depth, c.Longest, c.Idle = one(2, 4), one(4, 16), one(1, 2), 0
	}
	for i := range p.Clients {
		c := &p.Clients[i]
		c.Requests = max(requests/len(p.Clients), 1)
		c.Begins = min(c.Begins, c.Requests) // the first makes as many
	}
	if r.IntN(3) == 0 {
		p.Hosts, p.Fabric.Shared, p.Fabric.Late = 2, false, true
		for i := range p.Clients { // some are there when what a cut has held back arrives
			p.Clients[i].Idle = span(p.Clients[i].Idle, 300*time.Millisecond, time.Second)
		}
	}
	p.Faults = faults(r, len(p.Clients), requests, p.Fabric.Shared)
	if p.Hosts > 1 {
		if r.IntN(2) == 0 {
			p.Faults = nil // those below are hidden by none
		}
		p.Faults = pathFaults(r, len(p.Clients), requests, p.Faults)
	}
	for i := range p.Clients {
		c := &p.Clients[i]
		c.Alone = !c.ReadOnly && r.IntN(4) == 0
		c.Reopens = r.IntN(3) == 0
		c.Policy = [...]initiator.PathPolicy{initiator.PathFailOver, initiator.PathRoundRobin, initiator.PathMinInflight}[r.IntN(3)]
	}
	digests(r, &p)
	more := rand.New(rand.NewPCG(seed, 6))
	p.Volatile = more.IntN(4) == 0
	takeovers(more, &p, requests)
	if rand.New(rand.NewPCG(seed, 7)).IntN(2) == 0 {
		p.Servers = p.Hosts
	}
	return p
}

// digests gives no client data digests, or some, or all: then the fabric may
// flip bits of payload.
func digests(r *rand.Rand, p *Plan) {
	of := r.IntN(4)
	for i := range p.Clients {
		p.Clients[i].Digest = of == 3 || of == 2 && r.IntN(2) == 0
	}
	if of == 3 {
		p.Fabric.Flips = [...]int{0, 30, 300}[r.IntN(3)]
	}
}

// String is the plan as a failure shows it.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d paths, %d servers, %d blocks, inline %d, pool %d, depth %d, keepalive %v, disk %v and %v, volatile %v, %+v\n",
		p.Seed, p.Hosts, p.Servers, p.Blocks, p.Inline, p.Pool, p.Depth, p.Keepalive, p.Speed, p.Slow, p.Volatile, p.Fabric)
	for i, c := range p.Clients {
		timeout := c.Timeout.String()
		if c.Timeout == initiator.Forever {
			timeout = "none"
		}
		fmt.Fprintf(&b, "  client %d after %d requests: %d requests, %d in a session, leaves in one of %d waits, %d queues of depth %d, up to %d blocks, read-only %v, alone %v, preempts %v, reopens %v, loss timeout %s, idle %v, %s, digest %v\n",
			i, c.Begins, c.Requests, c.Session, c.Leaves, c.Queues, c.Depth, c.Longest, c.ReadOnly, c.Alone, c.Preempts, c.Reopens, timeout, c.Idle, c.Policy, c.Digest)
	}
	for i, f := range p.Faults {
		fmt.Fprintf(&b, "  fault %d %v\n", i, f)
	}
	return b.String()
}
