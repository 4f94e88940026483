package verbs

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counts are the counters of a device's completion queues and of the links
// bound to them. Posts, Polls and Arms count calls into C: a batch of works, up
// to 64 of a kind, takes one call to post and one to poll.
type Counts struct {
	Posts    uint64 // calls that posted; with Sends, a system call on rdma_rxe
	Polls    uint64 // calls that returned completions
	Arms     uint64 // requests for a completion event: two system calls
	Wakes    uint64 // completion events received
	Messages uint64 // Sends and RDMA operations
	Receives uint64 // receives that were posted
}

// Counter is an adapter of this provider.
type Counter interface {
	// Counts returns the counters. It is safe for concurrent use.
	Counts() Counts
}

// Add adds the counters of another queue or device.
func (c *Counts) Add(o Counts) {
	c.Posts += o.Posts
	c.Polls += o.Polls
	c.Arms += o.Arms
	c.Wakes += o.Wakes
	c.Messages += o.Messages
	c.Receives += o.Receives
}

// Statistics are the counters of one device.
type Statistics struct {
	Device string // the kernel's name
	Counts
}

// counted is an adapter, as the statistics of its provider need it.
type counted interface {
	Counter
	name() string
	closed() bool // the counters are final
}

// counterSet sums the counters of a provider's adapters.
type counterSet struct {
	mu   sync.Mutex
	open []counted
	gone map[string]Counts // of closed adapters, by device
}

// add adds an adapter.
func (s *counterSet) add(a counted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foldClosed()
	s.open = append(s.open, a)
}

// foldClosed adds the counters of closed adapters to gone and removes them from
// open. The caller holds mu.
func (s *counterSet) foldClosed() {
	s.open = slices.DeleteFunc(s.open, func(a counted) bool {
		if !a.closed() {
			return false
		}
		if s.gone == nil {
			s.gone = make(map[string]Counts)
		}
		sum := s.gone[a.name()]
		sum.Add(a.Counts())
		s.gone[a.name()] = sum
		return true
	})
}

// statistics returns the sums by device, sorted by name.
func (s *counterSet) statistics() []Statistics {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foldClosed()
	sums := maps.Clone(s.gone)
	if sums == nil {
		sums = make(map[string]Counts)
	}
	for _, a := range s.open {
		sum := sums[a.name()]
		sum.Add(a.Counts())
		sums[a.name()] = sum
	}
	var out []Statistics
	for name, c := range sums {
		out = append(out, Statistics{name, c})
	}
	slices.SortFunc(out, func(a, b Statistics) int { return strings.Compare(a.Device, b.Device) })
	return out
}
