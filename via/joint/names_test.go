package joint

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
)

// TestNamesDiffer: handles differ in the lower 16 bits, are below the limit
// there, and do not come again with the next region of their number.
func TestNamesDiffer(t *testing.T) {
	const limit = 8
	n := names{limit: limit}
	last := make(map[uint32]uint32) // by number
	for range 1000 {
		var all []uint32
		numbers := make(map[uint32]bool)
		for range limit {
			h, err := n.draw()
			if err != nil {
				t.Fatal(err)
			}
			number := h & 0xffff
			if h == 0 || h>>16 == 0 || number >= limit || numbers[number] || last[number] == h {
				t.Fatalf("handle %#x after %#x", h, all)
			}
			numbers[number], last[number] = true, h
			all = append(all, h)
		}
		if _, err := n.draw(); !errors.Is(err, via.ErrResource) {
			t.Fatalf("one too many: %v", err)
		}
		for _, h := range all {
			n.free(h)
		}
	}
}
