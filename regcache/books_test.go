package regcache

import (
	"testing"

	"go.uber.org/goleak"
)

// refusals records the regions offered to a policy and whether it kept them.
type refusals struct {
	evictionPolicy
	offered []*region
	taken   []bool
}

func (a *refusals) offer(r *region) bool {
	ok := a.evictionPolicy.offer(r)
	a.offered, a.taken = append(a.offered, r), append(a.taken, ok)
	return ok
}

// A registration refused by the policy must not be retained: only the sweep
// would end it, which hides the leak.
func TestRefusedRegionIsNotRetained(t *testing.T) {
	policies := map[string]func(evict func(*region)) evictionPolicy{
		"clock": func(evict func(*region)) evictionPolicy { return newClockPolicy(2, evict) },
		"ristretto, full": func(evict func(*region)) evictionPolicy {
			return must(newRistrettoPolicy(2, DefaultGranule, evict))(t)
		},
		"ristretto, closed": func(evict func(*region)) evictionPolicy {
			a := must(newRistrettoPolicy(2, DefaultGranule, evict))(t)
			a.close()
			return a
		},
		"alternating": func(evict func(*region)) evictionPolicy {
			s, n := &scripted{evict: evict}, 0
			s.onOffer = func(*region) bool { n++; return n%2 == 0 }
			return s
		},
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			log := &refusals{}
			r := newRig(t, 32, Config{MaxRegions: 32, newPolicy: func(evict func(*region)) evictionPolicy {
				log.evictionPolicy = policy(evict)
				return log
			}})
			refused := 0
			for g := range 32 {
				l := r.acquire(t, g)
				if last := len(log.taken) - 1; !log.taken[last] {
					refused++
					if s := log.offered[last].state.Load(); s != 1 {
						t.Fatalf("granule %d: state %#x after a refusal, want one lease", g, s)
					}
				}
				checkBooks(t, r)
				l.Release()
			}
			if len(log.offered) != 32 || int(r.Stats().Refused) != refused {
				t.Errorf("%d offers, %d refused, stats %+v", len(log.offered), refused, r.Stats())
			}
			if name != "ristretto, full" && refused == 0 {
				t.Error("nothing was refused")
			}
			r.waitForReaper(t)
			checkBooks(t, r)
		})
	}
}

// checkBooks checks the counters while only the reaper and the policy may act.
func checkBooks(t *testing.T, r *rig) {
	t.Helper()
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	if live := len(r.o.live); r.o.registered-r.o.deregistered != live {
		t.Fatalf("%d registered - %d deregistered, %d live", r.o.registered, r.o.deregistered, live)
	}
	s := r.Stats()
	// The reaper may be before or after its count of one batch.
	if n := int(s.Registrations - s.Deregistrations); n < len(r.o.live) || n > len(r.o.live)+reapBatch {
		t.Fatalf("%d - %d in %+v, %d live", s.Registrations, s.Deregistrations, s, len(r.o.live))
	}
	if s.Regions < len(r.o.live) || s.Regions > s.MaxRegions {
		t.Fatalf("%d live, %+v", len(r.o.live), s)
	}
}

func TestBooksAtEveryStep(t *testing.T) {
	for _, inline := range []bool{false, true} {
		r := newRig(t, 16, Config{MaxRegions: 4, Policy: PolicyClock, InlineDeregister: inline})
		var held []Lease
		for i := range 400 {
			if len(held) == 3 {
				held[0].Release()
				held = held[1:]
				checkBooks(t, r)
			}
			held = append(held, r.acquire(t, i*7%16))
			checkBooks(t, r)
		}
		for i := range held {
			held[i].Release()
			checkBooks(t, r)
		}
	}
}

func TestCloseEndsEveryGoroutine(t *testing.T) {
	for _, policy := range []Policy{PolicyRistretto, PolicyClock} {
		before := goleak.IgnoreCurrent()
		r := newRigNoCleanup(t, 8, Config{MaxRegions: 4, Policy: policy})
		for g := range 8 {
			l := r.acquire(t, g)
			l.Release()
		}
		r.finish(t)
		goleak.VerifyNone(t, before)
	}
}
