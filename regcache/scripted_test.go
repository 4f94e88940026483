package regcache

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// scripted is a policy that acts as a test says at the points where the
// protocol lets it.
type scripted struct {
	evict func(*region)

	mu      sync.Mutex
	onTouch func(*region)
	onOffer func(*region) bool // nil accepts
	forgot  []*region
	closed  bool

	unlocked atomic.Bool // offer goes on while mu is held
}

// newScripted returns the policy and a configuration that uses it.
func newScripted(cfg Config) (*scripted, Config) {
	s := &scripted{}
	cfg.newPolicy = func(evict func(*region)) evictionPolicy {
		s.evict = evict
		return s
	}
	return s, cfg
}

func (s *scripted) touch(r *region) {
	s.mu.Lock()
	do := s.onTouch
	s.mu.Unlock()
	if do != nil {
		do(r)
	}
}

func (s *scripted) offer(r *region) bool {
	if s.unlocked.Load() {
		return true
	}
	s.mu.Lock()
	do := s.onOffer
	s.mu.Unlock()
	return do == nil || do(r)
}

func (s *scripted) forget(r *region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot = append(s.forgot, r)
}

func (s *scripted) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// eventually waits for a condition that another goroutine will certainly
// establish.
func eventually(t failer, what string, done func() bool) {
	t.Helper()
	timeout := 20 * time.Second
	if os.Getenv(mutantVariable) != "" {
		timeout = 2 * time.Second // it may never come
	}
	for deadline := time.Now().Add(timeout); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout waiting for: %s", what)
		}
	}
}

// waitForReaper waits until the reaper has ended every pending region.
func (r *rig) waitForReaper(t failer) {
	t.Helper()
	eventually(t, "the reaper", func() bool {
		return len(r.live.selected(func(r *region) bool {
			s := r.state.Load()
			return s == 0 || s == stateRevoked || s&stateDead != 0
		})) == 0
	})
}
