package buddy

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// model is the same region as a list of allocated blocks.
type model map[int]int // offset of an allocated block to its bytes

func (m model) overlaps(off, size int) bool {
	for o, s := range m {
		if off < o+s && o < off+size {
			return true
		}
	}
	return false
}

// fits reports whether an aligned block of size bytes is free in the model.
func (m model) fits(region, size int) bool {
	for off := 0; off+size <= region; off += size {
		if !m.overlaps(off, size) {
			return true
		}
	}
	return false
}

func (m model) used() int {
	sum := 0
	for _, s := range m {
		sum += s
	}
	return sum
}

func roundUp(n, least int) int {
	return max(least, 1<<bits.Len(uint(n-1)))
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := 1 << rapid.IntRange(0, 12).Draw(t, "minBlock")
		region := least * rapid.IntRange(1, 130).Draw(t, "units")
		a, m := New(region, least), model{}
		if rapid.Bool().Draw(t, "caller's table") {
			a = NewIn(make([]byte, TableSize(region, least)+16), region, least) // 16: aligned
		}
		var order []int // allocated offsets, oldest first
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, region).Draw(t, "n")
				size := roundUp(n, least)
				want := m.fits(region, size)
				off, ok := a.Alloc(n)
				if ok != want {
					t.Fatalf("Alloc(%d) = %v, model says %v", n, ok, want)
				}
				if !ok {
					return
				}
				if off%size != 0 || off < 0 || off+size > region {
					t.Fatalf("Alloc(%d) = %d: misplaced", n, off)
				}
				if m.overlaps(off, size) {
					t.Fatalf("Alloc(%d) = %d overlaps an allocated block", n, off)
				}
				if got, ok := a.Allocated(off); got != size || got != a.Size(off) || !ok {
					t.Fatalf("Allocated(%d) = %d, %v, want %d", off, got, ok, size)
				}
				m[off] = size
				order = append(order, off)
			},
			"free": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("nothing is allocated")
				}
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				a.Free(order[i])
				delete(m, order[i])
				order = append(order[:i], order[i+1:]...)
			},
			"ask": func(t *rapid.T) {
				off := rapid.IntRange(-1, region+1).Draw(t, "off")
				size, ok := a.Allocated(off)
				if want, known := m[off]; ok != known || size != want {
					t.Fatalf("Allocated(%d) = %d, %v, want %d, %v", off, size, ok, want, known)
				}
			},
			"": func(t *rapid.T) {
				if got, want := a.Available(), region-m.used(); got != want {
					t.Fatalf("Available() = %d, want %d", got, want)
				}
			},
		})
		for off := range m {
			a.Free(off)
		}
		for left := region; left > 0; { // what is free is one block for each binary digit
			block := 1 << (bits.Len(uint(left)) - 1)
			if off, ok := a.Alloc(block); !ok || off != region-left {
				t.Fatalf("the empty region of %d does not coalesce: Alloc(%d) = %d, %v", region, block, off, ok)
			}
			left -= block
		}
	})
}

func TestNewestFreedBlockIsReusedFirst(t *testing.T) {
	a := New(64, 4)
	var offs []int
	for range 16 {
		off, ok := a.Alloc(4)
		if !ok {
			t.Fatal("the region is full too early")
		}
		offs = append(offs, off)
	}
	// Every other block, so that nothing coalesces.
	for i := 0; i < 16; i += 2 {
		a.Free(offs[i])
	}
	for i := 14; i >= 0; i -= 2 {
		if off, _ := a.Alloc(4); off != offs[i] {
			t.Fatalf("Alloc(4) = %d, want %d, the newest", off, offs[i])
		}
	}
}

func TestRefusals(t *testing.T) {
	a := New(1024, 256)
	for _, n := range []int{-1, 0, 1025, 1 << 62} {
		if off, ok := a.Alloc(n); ok {
			t.Errorf("Alloc(%d) = %d, want a refusal", n, off)
		}
	}
	if got := a.Available(); got != 1024 {
		t.Errorf("Available() = %d after refusals", got)
	}
}

func TestBrokenInvariantsPanic(t *testing.T) {
	fresh := func() *Allocator { return New(1024, 256) }
	cases := map[string]func(){
		"double free":           func() { a := fresh(); off, _ := a.Alloc(256); a.Free(off); a.Free(off) },
		"free of nothing":       func() { fresh().Free(0) },
		"free inside a block":   func() { a := fresh(); off, _ := a.Alloc(512); a.Free(off + 256) },
		"free of half a unit":   func() { a := fresh(); off, _ := a.Alloc(256); a.Free(off + 1) },
		"free beyond the end":   func() { fresh().Free(1024) },
		"free before the start": func() { fresh().Free(-256) },
		"size of nothing":       func() { fresh().Size(256) },
		"no whole blocks":       func() { New(1002, 4) },
		"odd block":             func() { New(1024, 3) },
		"no size":               func() { New(0, 0) },
		"block over size":       func() { New(4, 8) },
		"short table":           func() { NewIn(make([]byte, TableSize(1024, 256)-1), 1024, 256) },
		"table off by one":      func() { NewIn(make([]byte, 100)[1:], 1024, 256) },
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do()
		})
	}
}

func TestNoAllocation(t *testing.T) {
	a := New(64<<20, 4096)
	n := testing.AllocsPerRun(1000, func() {
		off, _ := a.Alloc(4096)
		far, _ := a.Alloc(1 << 20)
		a.Free(off)
		a.Free(far)
	})
	if n != 0 {
		t.Errorf("%v allocations per Alloc and Free, want 0", n)
	}
}

func BenchmarkAllocFree(b *testing.B) {
	a := New(64<<20, 4096)
	b.ReportAllocs()
	for b.Loop() {
		off, _ := a.Alloc(4096)
		a.Free(off)
	}
}
