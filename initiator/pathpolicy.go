package initiator

import (
	"fmt"
	"time"
)

// PathPolicy says which path of a session a queue uses. A queue has one path at
// a time. It moves to another one when that is lost, or when it has no command
// in flight and the policy prefers another path.
type PathPolicy string

// The policies.
const (
	// PathFailOver has all queues use the first host that is there, in the order
	// of the configuration.
	PathFailOver PathPolicy = "fail-over"

	// PathRoundRobin has each queue use the next path.
	PathRoundRobin PathPolicy = "round-robin"

	// PathMinInflight has a queue use the path with the fewest queues that have
	// commands in flight.
	PathMinInflight PathPolicy = "min-inflight"
)

// validate returns an error unless the policy is known.
func (p PathPolicy) validate() error {
	switch p {
	case PathFailOver, PathRoundRobin, PathMinInflight:
		return nil
	}
	return fmt.Errorf("path policy %q is not %s, %s or %s", p, PathFailOver, PathRoundRobin, PathMinInflight)
}

// pathFor returns the path for the queue with an index, or nil if none is up.
func (s *session) pathFor(index uint16) *path {
	up := s.upPaths(-1)
	if len(up) == 0 {
		return nil
	}
	best := up[0]
	switch s.cfg.PathPolicy {
	case PathRoundRobin:
		best = up[int(index)%len(up)]
	case PathMinInflight:
		for _, p := range up[1:] {
			if p.load() < best.load() {
				best = p
			}
		}
	}
	return best
}

// load is what PathMinInflight compares: the queues with commands in flight,
// and among equals all queues.
func (p *path) load() int64 { return p.active.Load()<<32 + p.queues.Load() }

// steadyTime is how long a path is up before queues move to it that have
// another one.
const steadyTime = time.Second

// prefers returns whether the policy has a queue move to another path.
func (q *Queue) prefers() bool {
	if !q.session.keeping.Load() || q.path.lost.IsSet() {
		return false
	}
	p := q.session.pathFor(q.index)
	if p == nil || p == q.path || q.device.cfg.Scheduler.Now().Sub(p.since) < steadyTime {
		return false
	}
	if q.device.cfg.PathPolicy == PathMinInflight {
		return q.path.active.Load() > p.active.Load()+1 // moving makes them no more equal otherwise
	}
	return true
}

// usePath counts the queue at a path in place of the one before.
func (q *Queue) usePath(p *path) {
	q.creditPath()
	q.path, q.session, q.poster.epoch = p, p.s, p.epoch
	p.queues.Add(1)
}

// creditPath counts at its path the requests of the queue since the last call.
func (q *Queue) creditPath() {
	n := q.requests.counts.Requests()
	if q.path != nil {
		q.path.s.taken[q.path.id].Add(n - q.credited)
	}
	q.credited = n
}

// errMoves ends the connection of a queue without commands in flight that moves
// to another path.
var errMoves = fmt.Errorf("the queue moves to another path")

// PathState is what a path is good for.
type PathState string

// The states.
const (
	PathUp   PathState = "up"   // requests may use it
	PathLost PathState = "lost" // its requests wait for the fence
	PathDown PathState = "down" // it is held down, or does not connect
)

// PathStatus describes a path of a session.
type PathStatus struct {
	Host   string    `json:"host"`
	State  PathState `json:"state"`
	Queues int64     `json:"queues"`      // that use it
	Active int64     `json:"active"`      // of these, with commands in flight
	Losses uint64    `json:"path_losses"` // in this session

	Requests uint64    `json:"requests"`           // of its queues, in this session
	LastLoss time.Time `json:"last_loss,omitzero"` // of Losses

	Error string `json:"error,omitempty"` // why it does not connect
}

// Paths describes the paths to the target, one for each host.
func (d *Device) Paths() []PathStatus { return d.session().pathStatus() }

// pathStatus describes the paths, in the order of their numbers.
func (s *session) pathStatus() (list []PathStatus) {
	names := s.cfg.targets.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, host := range names {
		if host == "" {
			continue
		}
		st := PathStatus{Host: host, State: PathDown, Losses: s.losses[id], LastLoss: s.lostAt[id], Requests: s.taken[id].Load()}
		if err := s.failures[id]; err != nil {
			st.Error = err.Error()
		}
		if p := s.paths[id]; p != nil {
			st.State, st.Queues, st.Active = PathLost, p.queues.Load(), p.active.Load()
			if p.up() {
				st.State = PathUp
			}
		}
		list = append(list, st)
	}
	return list
}
