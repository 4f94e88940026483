package verbs

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counts are what the completion queues of a device and the links bound to them did.
// Posts, Polls and Arms are calls into C, one each: for a batch of works that is one
// to post them and one to poll, as long as a batch is no more than 64 of a kind.
type Counts struct {
	Posts    uint64 // calls that posted; on rdma_rxe a system call, if Sends were among the works
	Polls    uint64 // calls that took completions
	Arms     uint64 // calls that asked for an event: two system calls
	Wakes    uint64 // events of the device that were taken
	Messages uint64 // Sends and RDMA operations
	Receives uint64 // receives that were posted
}

// Counter is an adapter of this provider.
type Counter interface {
	// Counts returns the counters. It is safe for concurrent use.
	Counts() Counts
}

// Add adds another queue's or device's counters.
func (c *Counts) Add(o Counts) {
	c.Posts += o.Posts
	c.Polls += o.Polls
	c.Arms += o.Arms
	c.Wakes += o.Wakes
	c.Messages += o.Messages
	c.Receives += o.Receives
}

// Statistics are what a provider did with one device.
type Statistics struct {
	Device string // the kernel's name
	Counts
}

// counted is an adapter of this provider, as its statistics see it.
type counted interface {
	Counter
	name() string
	closed() bool // for good; the counters do not change any more
}

// tally sums up the counters of a provider's adapters.
type tally struct {
	mu   sync.Mutex
	open []counted
	gone map[string]Counts // of adapters that are closed, by device
}

// add adds an adapter.
func (t *tally) add(a counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	t.open = append(t.open, a)
}

// settleLocked keeps the counters of adapters that are closed, and lets go of them.
func (t *tally) settleLocked() {
	t.open = slices.DeleteFunc(t.open, func(a counted) bool {
		if !a.closed() {
			return false
		}
		if t.gone == nil {
			t.gone = make(map[string]Counts)
		}
		sum := t.gone[a.name()]
		sum.Add(a.Counts())
		t.gone[a.name()] = sum
		return true
	})
}

// statistics returns the sums by device, in the order of their names.
func (t *tally) statistics() []Statistics {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	sums := maps.Clone(t.gone)
	if sums == nil {
		sums = make(map[string]Counts)
	}
	for _, a := range t.open {
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
