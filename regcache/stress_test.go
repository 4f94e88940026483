package regcache

import (
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/via"
)

// stressUses is the number of leases that TestStress acquires in all; make
// stress sets ten million under the race detector.
var stressUses = flag.Int("stress-uses", 0, "`NUMBER` of leases that TestStress takes; 0: a few")

// pattern returns granules in one of three orders: Zipf, cyclic, random.
func pattern(kind int, rng *rand.Rand, granules int) func() int {
	switch kind % 3 {
	case 0:
		zipf := rand.NewZipf(rng, 1.1, 1, uint64(granules-1))
		return func() int { return int(zipf.Uint64()) }
	case 1:
		at := rng.IntN(granules)
		return func() int { at = (at + 1) % granules; return at }
	default:
		return func() int { return rng.IntN(granules) }
	}
}

// TestStress lets goroutines lease, release and invalidate concurrently with
// the policy, the sweep, the reaper and failing registrations. The oracle
// panics at the first double registration or use after deregistration.
func TestStress(t *testing.T) {
	cases := map[string]Config{
		"ristretto":        {Policy: PolicyRistretto},
		"ristretto inline": {Policy: PolicyRistretto, InlineDeregister: true},
		"clock":            {Policy: PolicyClock},
		"clock inline":     {Policy: PolicyClock, InlineDeregister: true},
	}
	for name, cfg := range cases {
		for _, failing := range []bool{false, true} {
			t.Run(name, func(t *testing.T) { stress(t, cfg, failing) })
		}
	}
}

func stress(t *testing.T, cfg Config, failing bool) {
	const granules, budget, workers, variants = 64, 24, 6, 8
	leases := uint64(15000)
	if *stressUses > 0 {
		leases = uint64(*stressUses+variants-1) / variants
	}
	cfg.MaxRegions = budget
	r := newRig(t, granules, cfg)
	var count atomic.Uint32
	onRegister := func(*via.Memory) error {
		runtime.Gosched()
		if failing && count.Add(1)%10 == 0 {
			return syscall.ENOMEM
		}
		return nil
	}
	onDeregister := func(*via.Memory) { runtime.Gosched() }
	r.o.onRegister.Store(&onRegister)
	r.o.onDeregister.Store(&onDeregister)
	var wg sync.WaitGroup
	var leased, bounced atomic.Uint64
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			next := pattern(w, rng, granules)
			held := make([]Lease, 0, 3)
			for leased.Load() < leases {
				g := next()
				if rng.IntN(500) == 0 {
					if err := r.Revoke(r.tag); err != nil {
						t.Error(err)
					}
				}
				if rng.IntN(50) == 0 {
					if err := r.Invalidate(r.buf(g, 0, 1)); err != nil && !errors.Is(err, ErrInUse) {
						t.Error(err)
					}
				}
				l, err := r.Acquire(r.buf(g, rng.IntN(4096), 8), r.tag, RemoteRead)
				if err != nil {
					if !errors.Is(err, ErrBudget) {
						t.Error(err)
					}
					bounced.Add(1)
					continue
				}
				leased.Add(1)
				done := r.o.use(&l)
				if rng.IntN(8) == 0 {
					runtime.Gosched()
				}
				done()
				if held = append(held, l); len(held) == cap(held) || rng.IntN(2) == 0 {
					held[0].Release()
					held = append(held[:0], held[1:]...)
				}
			}
			for i := range held {
				held[i].Release()
			}
		})
	}
	wg.Wait()
	s := r.Stats()
	if n := leased.Load(); n != s.Hits+s.Misses || n < leases {
		t.Errorf("%d leases, want %d, stats %+v", n, leases, s)
	}
	if !failing && bounced.Load() != s.OverBudget {
		t.Errorf("%d bounced, stats %+v", bounced.Load(), s)
	}
	if s.LeasedRegions != 0 || s.PeakRegions > budget {
		t.Errorf("stats %+v", s)
	}
	t.Logf("%d leases, %d bounced, %d registered", leased.Load(), bounced.Load(), s.Registrations)
}

// Close is concurrent with Acquire and Release.
func TestStressClose(t *testing.T) {
	for round := range 60 {
		cfg := Config{MaxRegions: 4, Policy: []Policy{PolicyRistretto, PolicyClock}[round%2]}
		r := newRigNoCleanup(t, 8, cfg)
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					l, err := r.Acquire(r.buf((i+w)%8, 0, 8), r.tag, RemoteRead)
					if errors.Is(err, ErrClosed) {
						return
					}
					if err == nil {
						r.o.use(&l)()
						l.Release()
					} else if err != ErrBudget {
						t.Error(err)
						return
					}
				}
			})
		}
		for range round {
			runtime.Gosched()
		}
		// The workers do not touch the arena's memory, which may be unmapped.
		for {
			err := r.Close()
			if err == nil {
				break
			}
			if !errors.Is(err, ErrInUse) {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
		wg.Wait()
		r.finish(t)
	}
}
