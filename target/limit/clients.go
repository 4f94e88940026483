package limit

import (
	"cmp"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// An export is a [block.Shared]: a client is a session, as long as it has queues
// and until what it has used ahead is over, so that nobody gains by coming again.
var _ block.Shared = (*Export)(nil)

// Info implements [block.Device].
func (e *Export) Info() block.Info { return e.device.Info() }

// NewQueue implements [block.Device].
func (e *Export) NewQueue(depth int) (block.Queue, error) { return e.NewQueueFor("", depth) }

// NewQueueFor implements [block.Shared].
func (e *Export) NewQueueFor(client string, depth int) (block.Queue, error) {
	s := e.enlist(client)
	defer e.dismiss(s)
	return s.NewQueue(depth)
}

// enlist returns the session of a client and keeps it until dismiss.
func (e *Export) enlist(client string) *Session {
	now := e.clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, s := range e.clients {
		if name != client && s.queues == 0 && (e.even(s, now) || len(e.clients) >= mostClients) {
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

// mostClients is from how many clients on only those with queues are remembered.
const mostClients = 1024

// even reports whether it makes no difference to a client, nor to others, if it is
// forgotten: it has used nothing ahead, and has had no more than its share.
func (e *Export) even(s *Session, now time.Duration) bool {
	return s.own.settled(now) && (s.virtual <= e.virtual || e.shared.settled(now))
}

// dismiss says that a queue of the session is closed, or that enlist is undone.
func (e *Export) dismiss(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.queues--
}

// keep counts a queue of the session.
func (e *Export) keep(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.queues++
}

// settled reports whether nothing of the rates is used ahead.
func (b *bucket) settled(now time.Duration) bool { return b.used.longer() <= now }

// Counters are sums since the export was opened, or since a client came.
type Counters struct {
	Requests  uint64        `json:"requests"`  // let through; no Flush, which never waits
	Bytes     uint64        `json:"bytes"`     // of Reads and Writes among them
	Throttled uint64        `json:"throttled"` // of the requests, those that had to wait
	Waited    time.Duration `json:"waited_ns"` // the sum of their waits, those over by now
}

// ClientStatus is what a client did that has queues, or had them a moment ago.
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

// Status returns a snapshot, in which everything is of one moment.
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

// count counts a request that is let through after a wait.
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
