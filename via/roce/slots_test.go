package roce

import (
	"testing"

	"pgregory.net/rapid"
)

// Slots stay where they are while they are taken, and there are no more than were
// taken at once.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s slots[int]
		taken, most := make(map[uint32]*int), 0
		for i := range rapid.IntRange(1, 300).Draw(rt, "steps") {
			if rapid.IntRange(0, 2).Draw(rt, "take") > 0 {
				n, x := s.take()
				if taken[n] != nil {
					rt.Fatalf("slot %d is taken twice", n)
				}
				taken[n], *x = x, i
				most = max(most, len(taken))
				continue
			}
			for n, x := range taken {
				if s.at(n) != x {
					rt.Fatalf("slot %d has moved", n)
				}
				s.give(n)
				delete(taken, n)
				break
			}
		}
		if all := len(s.blocks) * blockSlots; all >= most+blockSlots {
			rt.Errorf("%d slots, of which %d were taken at once", all, most)
		}
	})
}

func TestAllocNothingPerSlot(t *testing.T) {
	var s slots[int]
	var held [40]uint32
	cycle := func() {
		for i := range held {
			held[i], _ = s.take()
		}
		for _, n := range held {
			s.give(n)
		}
	}
	cycle()
	if n := testing.AllocsPerRun(10, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
