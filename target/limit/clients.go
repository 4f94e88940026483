package limit

import (
	"cmp"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// An export is a [block.Shared]: a client is a session while it has queues and
// until its advance use has expired, so that reconnecting gains nothing.
var _ block.Shared = (*Export)(nil)

// Info implements [block.Device].
func (e *Export) Info() block.Info { return e.device.Info() }

// Durability implements [block.DurabilityReporter].
func (e *Export) Durability() block.Durability { return block.DurabilityOf(e.device) }

// Identity implements [block.Identified].
func (e *Export) Identity() block.Identity { return block.IdentityOf(e.device) }

// NewQueue implements [block.Device].
func (e *Export) NewQueue(depth int) (block.Queue, error) { return e.NewQueueFor("", depth) }

// NewQueueFor implements [block.Shared].
func (e *Export) NewQueueFor(client string, depth int) (block.Queue, error) {
	s := e.acquireSession(client)
	defer e.releaseSession(s)
	return s.NewQueue(depth)
}

// acquireSession returns the session of a client and keeps it until
// releaseSession.
func (e *Export) acquireSession(client string) *Session {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, s := range e.clients {
		if name != client && s.queues == 0 && (e.forgettable(s, now) || len(e.clients) >= mostClients) {
			delete(e.clients, name)
		}
	}
	s := e.clients[client]
	if s == nil {
		s = e.Session()
		if e.clients == nil {
			e.clients = make(map[string]*Session)
		}
		e.clients[client] = s
	}
	s.queues++
	return s
}

// mostClients is from how many clients on only those with queues are
// remembered.
const mostClients = 1024

// forgettable reports whether a session may be deleted without effect: it has
// used nothing in advance, and no more than its share.
//
// The caller holds e.mu.
// +checklocksignore
func (e *Export) forgettable(s *Session, now time.Duration) bool {
	return s.bucket.idle(now) && (s.virtual <= e.virtual || e.shared.idle(now))
}

// releaseSession drops a reference of acquireSession or retainSession.
func (e *Export) releaseSession(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.queues--
}

// retainSession counts a queue of the session.
func (e *Export) retainSession(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.queues++
}

// idle reports whether nothing is used in advance.
func (b *bucket) idle(now time.Duration) bool { return b.used.longer() <= now }

// Counters are sums since the export was opened, or since a client came.
type Counters struct {
	Requests  uint64        `json:"requests"`  // admitted; no Flush, which never waits
	Bytes     uint64        `json:"bytes"`     // of Reads and Writes among them
	Throttled uint64        `json:"throttled"` // of the requests, those that had to wait
	Waited    time.Duration `json:"waited_ns"` // the sum of their waits, those over by now
}

// ClientStatus is the counters of a client that has queues, or had them
// recently.
type ClientStatus struct {
	Client string `json:"client"`
	Queues int    `json:"queues"`
	Counters
}

// Status is a snapshot of an export.
type Status struct {
	Limits        Rates         `json:"limits"`         // of all clients together
	SessionLimits Rates         `json:"session_limits"` // of each
	Elapsed       time.Duration `json:"elapsed_ns"`     // since the export was opened, by the clock of the limits
	Counters
	Clients []ClientStatus `json:"clients"` // by name
}

// Status returns a consistent snapshot.
func (e *Export) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	status := Status{
		Limits: e.shared.rates, SessionLimits: e.each,
		Elapsed: e.clock(), Counters: e.counters, Clients: []ClientStatus{},
	}
	for name, s := range e.clients {
		status.Clients = append(status.Clients, ClientStatus{Client: name, Queues: s.queues, Counters: s.counters})
	}
	slices.SortFunc(status.Clients, func(a, b ClientStatus) int { return cmp.Compare(a.Client, b.Client) })
	return status
}

// count counts a request that is admitted after a wait.
func (c *Counters) count(r *block.Request, wait time.Duration) {
	c.Requests++
	if r.Op == block.Read || r.Op == block.Write {
		c.Bytes += uint64(r.Length)
	}
	if wait > 0 {
		c.Throttled++
		c.Waited += wait
	}
}
