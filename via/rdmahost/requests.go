package rdmahost

import (
	"sync"

	"github.com/viablk/viablk/internal/contain"
)

// Requests is the set of connection requests of a listener that the consumer
// has neither accepted nor refused. It is safe for concurrent use.
type Requests[R comparable] struct {
	calls sync.WaitGroup // of the consumer's function

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pending map[R]struct{}
}

// Deliver adds a request and passes it to the consumer on a goroutine of its
// own; if that panics, refuse answers. It returns false, and does nothing, once
// Close was called.
func (s *Requests[R]) Deliver(r R, incoming, refuse func(R)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.pending == nil {
		s.pending = make(map[R]struct{})
	}
	s.pending[r] = struct{}{}
	s.calls.Go(func() {
		defer func() {
			if value := recover(); value != nil {
				contain.Caught(value).Log(nil, "panic: a connection is refused")
				refuse(r)
			}
		}()
		incoming(r)
	})
	return true
}

// Remove removes a request: the consumer answers it.
func (s *Requests[R]) Remove(r R) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, r)
}

// Close ends Deliver and returns the requests that the caller has to refuse.
// The consumer may answer one of them at the same time.
func (s *Requests[R]) Close() []R {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	all := make([]R, 0, len(s.pending))
	for r := range s.pending {
		all = append(all, r)
	}
	s.pending = nil
	return all
}

// Wait blocks until every call of the consumer's function has returned.
func (s *Requests[R]) Wait() { s.calls.Wait() }
