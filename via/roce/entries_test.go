package roce

import (
	"testing"

	"pgregory.net/rapid"
)

// Entries keep their address while in use, and their number is bounded by the
// most in use at once.
func TestEntriesRemainInPlace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s entries[int]
		taken, most := make(map[uint32]*int), 0
		for i := range rapid.IntRange(1, 300).Draw(rt, "steps") {
			if rapid.IntRange(0, 2).Draw(rt, "acquire") > 0 {
				n, x := s.acquire()
				if taken[n] != nil {
					rt.Fatalf("entry %d is acquired twice", n)
				}
				taken[n], *x = x, i
				most = max(most, len(taken))
				continue
			}
			for n, x := range taken {
				if s.at(n) != x {
					rt.Fatalf("entry %d has moved", n)
				}
				s.release(n)
				delete(taken, n)
				break
			}
		}
		if all := len(s.blocks) * blockEntries; all >= most+blockEntries {
			rt.Errorf("%d entries, of which %d were in use at once", all, most)
		}
	})
}

func TestAllocNothingPerEntry(t *testing.T) {
	var s entries[int]
	var held [40]uint32
	cycle := func() {
		for i := range held {
			held[i], _ = s.acquire()
		}
		for _, n := range held {
			s.release(n)
		}
	}
	cycle()
	if n := testing.AllocsPerRun(10, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
