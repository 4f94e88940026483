package regcache

import (
	"testing"

	"go.uber.org/goleak"
)

// refusals counts what a policy is offered, and checks what becomes of it.
type refusals struct {
	adviser
	offered []*region
	taken   []bool
}

func (a *refusals) offer(r *region) bool {
	ok := a.adviser.offer(r)
	a.offered, a.taken = append(a.offered, r), append(a.taken, ok)
	return ok
}

// A registration that the policy did not take must not be retained: nobody
// would end it but the sweep, which hides the loss.
func TestRefusedIsNotRetained(t *testing.T) {
	policies := map[string]func(evict func(*region)) adviser{
		"clock": func(evict func(*region)) adviser { return newClockAdviser(2, evict) },
		"ristretto, full": func(evict func(*region)) adviser {
			return must(newRistrettoAdviser(2, DefaultGranule, evict))(t)
		},
		"ristretto, closed": func(evict func(*region)) adviser {
			a := must(newRistrettoAdviser(2, DefaultGranule, evict))(t)
			a.close()
			return a
		},
		"alternating": func(evict func(*region)) adviser {
			s, n := &scripted{evict: evict}, 0
			s.onOffer = func(*region) bool { n++; return n%2 == 0 }
			return s
		},
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			log := &refusals{}
			r := newRig(t, 32, Config{MaxRegions: 32, adviser: func(evict func(*region)) adviser {
				log.adviser = policy(evict)
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
				checkLedger(t, r)
				l.Release()
			}
			if len(log.offered) != 32 || int(r.Stats().Refused) != refused {
				t.Errorf("%d offers, %d refused, stats %+v", len(log.offered), refused, r.Stats())
			}
			if name != "ristretto, full" && refused == 0 {
				t.Error("nothing was refused")
			}
			r.settle(t)
			checkLedger(t, r)
		})
	}
}

// checkLedger checks that the books agree, while nobody but the reaper and the
// policy may act.
func checkLedger(t *testing.T, r *rig) {
	t.Helper()
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	if live := len(r.o.live); r.o.registered-r.o.deregistered != live {
		t.Fatalf("%d registered - %d deregistered, %d live", r.o.registered, r.o.deregistered, live)
	}
	s := r.Stats()
	// The reaper is before or after its count of one batch.
	if n := int(s.Registrations - s.Deregistrations); n < len(r.o.live) || n > len(r.o.live)+reapBatch {
		t.Fatalf("%d - %d in %+v, %d live", s.Registrations, s.Deregistrations, s, len(r.o.live))
	}
	if s.Regions < len(r.o.live) || s.Regions > s.MaxRegions {
		t.Fatalf("%d live, %+v", len(r.o.live), s)
	}
}

func TestLedgerAtEveryStep(t *testing.T) {
	for _, inline := range []bool{false, true} {
		r := newRig(t, 16, Config{MaxRegions: 4, Policy: PolicyClock, InlineDeregister: inline})
		var held []Lease
		for i := range 400 {
			if len(held) == 3 {
				held[0].Release()
				held = held[1:]
				checkLedger(t, r)
			}
			held = append(held, r.acquire(t, i*7%16))
			checkLedger(t, r)
		}
		for i := range held {
			held[i].Release()
			checkLedger(t, r)
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
