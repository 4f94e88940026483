package regcache

import (
	"testing"

	"pgregory.net/rapid"
)

// loop leases granules 0..span-1 cyclically and returns the hit ratio after the
// first rounds.
func loop(t *testing.T, r *rig, span, rounds int) float64 {
	t.Helper()
	warm := rounds / 4
	var before Stats
	for round := range rounds {
		if round == warm {
			before = r.Stats()
		}
		for g := range span {
			l := r.acquire(t, g)
			l.Release()
		}
	}
	s := r.Stats()
	hits, misses := s.Hits-before.Hits, s.Misses-before.Misses
	return float64(hits) / float64(hits+misses)
}

// A plain clock has no hits in a ring of buffers a little larger than the
// budget.
func TestClockKeepsPartOfACycle(t *testing.T) {
	r := newRig(t, 44, Config{MaxRegions: 40, Policy: PolicyClock, InlineDeregister: true})
	if ratio := loop(t, r, 44, 60); ratio < 0.5 {
		t.Errorf("hit ratio %.2f", ratio)
	}
}

func TestClockFollowsAMovingWorkingSet(t *testing.T) {
	r := newRig(t, 64, Config{MaxRegions: 20, Policy: PolicyClock, InlineDeregister: true})
	for first := 0; first < 64; first += 16 {
		for range 100 {
			for g := first; g < first+16; g++ {
				l := r.acquire(t, g)
				l.Release()
			}
		}
		for g := first; g < first+16; g++ {
			if r.region(g) == nil {
				t.Errorf("granule %d of the working set is not registered", g)
			}
		}
	}
}

func TestClockPolicyAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 6).Draw(t, "room")
		kept := map[*region]bool{}
		c := newClockPolicy(room, func(r *region) {
			if !kept[r] {
				t.Fatal("evicts what it does not keep")
			}
			delete(kept, r)
		})
		all := make([]*region, 12)
		for i := range all {
			all[i] = &region{}
		}
		offers := 0
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				r := rapid.SampledFrom(all).Draw(t, "region")
				if kept[r] {
					t.Skip("kept")
				}
				room := len(kept) < c.room
				if !room {
					offers++
				}
				want := room || offers%admitEvery == 0
				kept[r] = want
				if !want {
					delete(kept, r)
				}
				if got := c.offer(r); got != want {
					t.Fatalf("offer: %v, want %v", got, want)
				}
			},
			"forget": func(t *rapid.T) {
				r := rapid.SampledFrom(all).Draw(t, "region")
				c.forget(r)
				delete(kept, r)
			},
			"use": func(t *rapid.T) { rapid.SampledFrom(all).Draw(t, "region").used.Store(true) },
			"": func(t *rapid.T) {
				if len(c.kept) != len(kept) || len(kept) > room {
					t.Fatalf("keeps %d, model %d, room %d", len(c.kept), len(kept), room)
				}
				for i, r := range c.kept {
					if !kept[r] || r.clockIndex != i {
						t.Fatalf("entry %d is wrong", i)
					}
				}
			},
		})
		c.close()
		c.close()
		if len(kept) != 0 || c.offer(all[0]) {
			t.Fatalf("%d kept after close", len(kept))
		}
	})
}

// The hash must be a bijection, or ristretto loses values.
func TestMixIsABijection(t *testing.T) {
	inverse := func(x uint64) uint64 {
		x ^= x>>31 ^ x>>62
		x *= 0x319642b2d24d8ec3
		x ^= x>>27 ^ x>>54
		x *= 0x96de1b173f119089
		x ^= x>>30 ^ x>>60
		return x - 0x9e3779b97f4a7c15
	}
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Uint64().Draw(t, "x")
		if got := inverse(mix(x)); got != x {
			t.Fatalf("inverse(mix(%#x)) = %#x", x, got)
		}
	})
}

func TestCounters(t *testing.T) {
	for _, c := range []struct {
		room int
		want int64
	}{{1, 1024}, {100, 10000}, {10000, 1000000}, {50000, 1 << 20}, {1 << 20, 10 << 20}} {
		if got := counters100(c.room); got != c.want {
			t.Errorf("%d regions: %d counters, want %d", c.room, got, c.want)
		}
	}
}
