package regcache

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// scripted is an adviser that does what a test says at the points where the
// protocol lets it act.
type scripted struct {
	evict func(*region)

	mu      sync.Mutex
	onTouch func(*region)
	onOffer func(*region) bool // nil accepts
	forgot  []*region
	closed  bool

	unlocked atomic.Bool // offer goes on while mu is held
}

// newScripted returns the adviser and a configuration that uses it.
func newScripted(cfg Config) (*scripted, Config) {
	s := &scripted{}
	cfg.adviser = func(evict func(*region)) adviser {
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

// eventually waits for what another goroutine is certain to do.
func eventually(t failer, what string, done func() bool) {
	t.Helper()
	patience := 20 * time.Second
	if os.Getenv(mutantVariable) != "" {
		patience = 2 * time.Second // it may never come
	}
	for deadline := time.Now().Add(patience); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// settle waits until the reaper has ended what is to be ended.
func (r *rig) settle(t failer) {
	t.Helper()
	eventually(t, "the reaper", func() bool {
		return len(r.live.selected(func(r *region) bool {
			s := r.state.Load()
			return s == 0 || s == stateRevoked || s&stateDead != 0
		})) == 0
	})
}
