package roce

import (
	"testing"

	"pgregory.net/rapid"
)

// The table is a map, whatever comes and goes, also where all collide.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table table
		model := make(map[uint32]*link)
		number := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Max(1<<24-1))
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			qpn := number.Draw(rt, "queue pair")
			switch l := model[qpn]; {
			case l == nil:
				l = &link{qpn: qpn}
				table.add(l)
				model[qpn] = l
			case rapid.Bool().Draw(rt, "remove"):
				table.remove(l)
				table.remove(l)
				delete(model, qpn)
			}
			if table.count != len(model) {
				rt.Fatalf("%d links, want %d", table.count, len(model))
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
