package roce

import (
	"testing"

	"pgregory.net/rapid"
)

// The table matches a map after random insertions and removals, also if all
// numbers collide.
func TestTableMatchesMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table table
		model := make(map[uint32]*transport)
		number := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Max(1<<24-1))
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			qpn := number.Draw(rt, "queue pair")
			switch {
			case model[qpn] == nil:
				model[qpn] = new(transport)
				table.add(qpn, model[qpn])
			case rapid.Bool().Draw(rt, "remove"):
				table.remove(qpn)
				table.remove(qpn)
				delete(model, qpn)
			}
			if table.count != len(model) {
				rt.Fatalf("%d queue pairs, want %d", table.count, len(model))
			}
			for qpn := range uint32(41) {
				if got := table.find(qpn); got != model[qpn] {
					rt.Fatalf("queue pair %d: %p, want %p", qpn, got, model[qpn])
				}
			}
			for qpn, l := range model {
				if table.find(qpn) != l {
					rt.Fatalf("queue pair %d is lost", qpn)
				}
			}
		}
	})
}
