package simulation

import (
	"math/rand/v2"
	"testing"
	"time"
)

// randomRecord returns accesses of a block as a disk would answer them, with
// some reads that see another write.
func randomRecord(r *rand.Rand) *blockRecord {
	type effect struct {
		at time.Duration
		a  *access
	}
	var effects []effect
	b := &blockRecord{}
	for i := range 4 + r.IntN(8) {
		began := time.Duration(r.IntN(40))
		a := &access{began: began, ended: began + 1 + time.Duration(r.IntN(12)), write: r.IntN(2) == 0}
		at := began + time.Duration(r.Int64N(int64(a.ended-began)+1))
		if a.write {
			a.tag = Tag(i + 1)
			if r.IntN(6) == 0 {
				a.ended = never
			}
		}
		effects = append(effects, effect{at, a})
		b.accesses = append(b.accesses, a)
	}
	for i, e := range effects { // of one time: those before first
		if e.a.write {
			continue
		}
		last, at := zero, time.Duration(-1)
		for j, w := range effects {
			if w.a.write && (w.at < e.at || w.at == e.at && j < i) && w.at >= at {
				last, at = w.a.tag, w.at
			}
		}
		if e.a.tag = last; r.IntN(12) == 0 {
			e.a.tag = Tag(r.IntN(len(effects) + 1))
		}
	}
	return b
}

// TestOracleAgreesWithPorcupine: on records without zeroes that are read.
func TestOracleAgreesWithPorcupine(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	good, bad := 0, 0
	for range 4000 {
		b := randomRecord(r)
		b.initial = Tag(1000)
		for _, a := range b.accesses {
			if !a.write && a.tag == zero {
				a.tag = b.initial
			}
		}
		zones, search := b.check(0), b.sample(0)
		if (zones == nil) != (search == nil) {
			t.Fatalf("zones say %v, the search %v", zones, search)
		}
		if zones == nil {
			good++
		} else {
			bad++
		}
	}
	if good < 500 || bad < 500 {
		t.Errorf("%d records are good, %d are bad", good, bad)
	}
}
