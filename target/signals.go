package target

import (
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/via"
)

// Ways to stop a worker.
const (
	stopDrain = 1 // finish the requests in flight
	stopNow   = 2
)

// signals are what other goroutines tell a worker. They are all of a connection
// that the server's session table knows.
type signals struct {
	halt    atomic.Int32 // stopDrain or stopNow
	recheck atomic.Bool  // the session changed
	quiet   atomic.Bool  // of an I/O connection that drains: nothing is in flight

	// Of a control connection, with recheck.
	rekey     atomic.Bool // the initiator is to be asked for a rekey
	dismissed atomic.Bool // the initiator is to go: its certificate is not valid any more

	// Set before the session knows the connection.
	vi   *via.VI // for its life
	path uint16  // of the session

	mu sync.Mutex
	// +checklocks:mu
	bell sched.Bell // ends a sleep of the worker; nil before and after it
}

// stop makes the worker stop. It is idempotent.
func (s *signals) stop(how int32) {
	for {
		old := s.halt.Load()
		if old >= how {
			return
		}
		if s.halt.CompareAndSwap(old, how) {
			break
		}
	}
	s.wake()
}

// recheckSession makes the worker check its session again.
func (s *signals) recheckSession() {
	s.recheck.Store(true)
	s.wake()
}

// askRekey makes the worker ask for a rekey.
func (s *signals) askRekey() {
	s.rekey.Store(true)
	s.recheckSession()
}

// dismiss makes the worker end the session.
func (s *signals) dismiss() {
	s.dismissed.Store(true)
	s.recheckSession()
}

// wake ends a sleep of the worker.
func (s *signals) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bell != nil {
		s.bell.Ring()
	}
}

// setBell sets the bell that wake rings, and returns the one before.
func (s *signals) setBell(b sched.Bell) (old sched.Bell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.bell = s.bell, b
	return old
}
