package block

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestAddExtent(t *testing.T) {
	type step struct {
		length int64
		flags  ExtentFlags
		more   bool
	}
	for name, row := range map[string]struct {
		length   int64
		capacity int
		steps    []step
		want     []Extent
	}{
		"one":          {100, 4, []step{{100, 0, false}}, []Extent{{100, 0}}},
		"cut":          {100, 4, []step{{50, 0, true}, {1 << 40, Hole | Zero, false}}, []Extent{{50, 0}, {50, Hole | Zero}}},
		"merged":       {100, 4, []step{{10, Zero, true}, {20, Zero, true}, {1, 0, true}}, []Extent{{30, Zero}, {1, 0}}},
		"full":         {100, 1, []step{{10, Zero, true}, {20, 0, false}}, []Extent{{10, Zero}}},
		"merged, full": {100, 1, []step{{10, Zero, true}, {20, Zero, true}}, []Extent{{30, Zero}}},
		"empty":        {100, 2, []step{{0, Zero, true}, {-1, 0, true}, {100, 0, false}, {0, Zero, false}}, []Extent{{100, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Op: Status, Length: row.length, Extents: make([]Extent, 0, row.capacity)}
			for i, s := range row.steps {
				if more := r.AddExtent(s.length, s.flags); more != s.more {
					t.Errorf("step %d: more is %v", i, more)
				}
			}
			if !slices.Equal(r.Extents, row.want) {
				t.Errorf("got %v, want %v", r.Extents, row.want)
			}
		})
	}
}

// Aligned extents claim of each block what its bytes have in common, and
// nothing of a block that is not covered.
func TestAlignExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const align = 8
		extents := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Extent {
			return Extent{rapid.Int64Range(1, 20).Draw(t, "length"), ExtentFlags(rapid.IntRange(0, 3).Draw(t, "flags"))}
		}), 1, 8).Draw(t, "extents")
		var bytes []ExtentFlags
		for _, e := range extents {
			for range e.Length {
				bytes = append(bytes, e.Flags)
			}
		}
		var want []ExtentFlags
		for at := 0; at+align <= len(bytes); at += align {
			common := ExtentFlags(KnownExtentFlags)
			for _, b := range bytes[at : at+align] {
				common &= b
			}
			want = append(want, common)
		}
		if len(want) == 0 {
			want = []ExtentFlags{0}
		}
		var got []ExtentFlags
		for i, e := range AlignExtents(make([]Extent, 0, 16), extents, align) {
			if e.Length <= 0 || e.Length%align != 0 {
				t.Fatalf("extent %d has %d bytes", i, e.Length)
			}
			for range e.Length / align {
				got = append(got, e.Flags)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v became %v, want %v", extents, got, want)
		}
	})
}
