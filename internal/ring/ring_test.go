package ring

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model reads the entries from the oldest to the newest.
func (r *Ring[T]) model() []T {
	var all []T
	for i := range r.Len() {
		all = append(all, *r.At(i))
	}
	return all
}

func TestRandomOperationsAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New[int](rapid.IntRange(0, 20).Draw(t, "capacity"))
		r.head = rapid.SampledFrom([]uint32{0, math.MaxUint32 - 3}).Draw(t, "start")
		r.tail = r.head
		var want []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if r.Full() {
					t.Skip("full")
				}
				next++
				r.Push(next)
				want = append(want, next)
			},
			"pop": func(t *rapid.T) {
				if r.Empty() {
					t.Skip("empty")
				}
				if first := *r.First(); first != want[0] {
					t.Fatalf("first %d, want %d", first, want[0])
				}
				if x := r.Pop(); x != want[0] {
					t.Fatalf("popped %d, want %d", x, want[0])
				}
				want = want[1:]
			},
			"popInto": func(t *rapid.T) {
				dst := make([]int, rapid.IntRange(0, 40).Draw(t, "n"))
				n := r.PopInto(dst)
				if n != min(len(dst), len(want)) || !slices.Equal(dst[:n], want[:n]) {
					t.Fatalf("popped %v, want the first of %v", dst[:n], want)
				}
				want = want[n:]
			},
			"grow": func(t *rapid.T) {
				n := rapid.IntRange(0, 64).Draw(t, "n")
				if r.Grow(n); len(r.entries) < n {
					t.Fatalf("room for %d after Grow(%d)", len(r.entries), n)
				}
			},
			"clear": func(*rapid.T) {
				r.Clear()
				want = nil
			},
			"": func(t *rapid.T) {
				if r.Len() != len(want) || r.Empty() != (len(want) == 0) || r.Full() != (len(want) == len(r.entries)) {
					t.Fatalf("len %d, empty %v, full %v of %d; want %d entries",
						r.Len(), r.Empty(), r.Full(), len(r.entries), len(want))
				}
				if got := r.model(); !slices.Equal(got, want) {
					t.Fatalf("holds %v, want %v", got, want)
				}
			},
		})
	})
}

func TestSizeIsPowerOfTwo(t *testing.T) {
	for n, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1 << 20: 1 << 20, 1<<20 + 1: 1 << 21} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestPoppedEntriesAreReleased(t *testing.T) {
	r := New[*int](4)
	for range 4 {
		r.Push(new(int))
	}
	r.Pop()
	r.PopInto(make([]*int, 1))
	r.Clear()
	for i, p := range r.entries {
		if p != nil {
			t.Errorf("entry %d still refers to what was popped", i)
		}
	}
}

func TestAllocFree(t *testing.T) {
	r, dst := New[*int](8), make([]*int, 8)
	x := new(int)
	if n := testing.AllocsPerRun(100, func() {
		for range 8 {
			r.Push(x)
		}
		r.Pop()
		r.PopInto(dst)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
