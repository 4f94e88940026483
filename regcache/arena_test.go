package regcache

import (
	"errors"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

func TestArenaIsAlignedToGranules(t *testing.T) {
	r := newRig(t, 1, Config{Granule: HugeGranule})
	for _, size := range []int{1, HugeGranule, HugeGranule + 1, 5*HugeGranule - 1} {
		a := must(r.NewArena(size))(t)
		whole := (size + HugeGranule - 1) / HugeGranule * HugeGranule
		if len(a.Bytes()) != whole || cap(a.Bytes()) != whole {
			t.Errorf("arena of %d bytes has %d, want %d", size, len(a.Bytes()), whole)
		}
		if addressOf(a.Bytes())%HugeGranule != 0 {
			t.Errorf("arena begins at %#x", addressOf(a.Bytes()))
		}
	}
	for _, size := range []int{-1, 0, 1 << 62} {
		if _, err := r.NewArena(size); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("arena of %d bytes: %v", size, err)
		}
	}
}

func TestKeysAreUniqueAmongArenas(t *testing.T) {
	r := newRig(t, 3, Config{})
	second := must(r.NewArena(2 << 20))(t)
	third := must(r.NewArena(4 << 20))(t)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	large := must(r.NewArena(3 << 20))(t)
	small := must(r.NewArena(1 << 20))(t) // reuses a number of the second
	seen := map[uint64]bool{}
	for _, a := range []*Arena{r.arena, third, large, small} {
		for off := 0; off < len(a.Bytes()); off += 1 << 20 {
			for access := range RemoteRead | RemoteWrite + 1 {
				l := must(r.Acquire(a.Bytes()[off:off+1], r.tag, access))(t)
				key := l.region.key()
				if seen[key] {
					t.Errorf("key %#x twice", key)
				}
				seen[key] = true
				l.Release()
			}
		}
	}
	if small.first != 3 {
		t.Errorf("the small arena begins at granule %d, want 3", small.first)
	}
}

func TestCloseOfAnArena(t *testing.T) {
	r := newRig(t, 1, Config{})
	a := must(r.NewArena(2 << 20))(t)
	l := must(r.Acquire(a.Bytes()[:1], r.tag, 0))(t)
	b := must(a.Alloc(100))(t)
	if err := a.Close(); !errors.Is(err, ErrInUse) {
		t.Fatalf("Close with a lease and a buffer out: %v", err)
	}
	if _, err := r.Acquire(b, r.tag, 0); err != ErrNotArena {
		t.Errorf("Acquire in a closed arena: %v", err)
	}
	l.Release()
	if err := a.Close(); !errors.Is(err, ErrInUse) {
		t.Fatalf("Close with a buffer out: %v", err)
	}
	if err := a.Free(b); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	other := r.acquire(t, 0) // other arenas still work
	other.Release()
}

// A goroutine that found its arena before Close must neither register nor lease
// there.
func TestMissInAClosedArena(t *testing.T) {
	r := newRig(t, 1, Config{})
	a := must(r.NewArena(1 << 20))(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.miss(a, 0, r.tag, 0); err != ErrClosed {
		t.Errorf("miss: %v", err)
	}
}

func TestAllocAgainstModel(t *testing.T) {
	r := newRig(t, 1, Config{})
	rapid.Check(t, func(t *rapid.T) {
		granules := rapid.IntRange(1, 7).Draw(t, "granules")
		a, err := r.NewArena(granules << 20)
		if err != nil {
			t.Fatal(err)
		}
		type span struct{ off, n int }
		var bufs [][]byte
		spans := map[int]span{}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 3<<20), rapid.IntRange(1, 1<<16)).Draw(t, "n")
				b, err := a.Alloc(n)
				if err != nil {
					if !errors.Is(err, syscall.ENOMEM) {
						t.Fatal(err)
					}
					return
				}
				off := int(addressOf(b) - a.base)
				if len(b) != n || cap(b) != n || off%4096 != 0 || off+n > len(a.Bytes()) {
					t.Fatalf("Alloc(%d): %d bytes, capacity %d, at %d", n, len(b), cap(b), off)
				}
				if n <= 1<<20 && off>>20 != (off+n-1)>>20 {
					t.Fatalf("Alloc(%d) at %d crosses a granule", n, off)
				}
				if n > 1<<20 && off%(1<<20) != 0 {
					t.Fatalf("Alloc(%d) at %d does not begin at a granule", n, off)
				}
				for _, s := range spans {
					if off < s.off+s.n && s.off < off+n {
						t.Fatalf("Alloc(%d) at %d overlaps %v", n, off, s)
					}
				}
				bufs, spans[off] = append(bufs, b), span{off, n}
			},
			"free": func(t *rapid.T) {
				if len(bufs) == 0 {
					t.Skip("nothing is allocated")
				}
				i := rapid.IntRange(0, len(bufs)-1).Draw(t, "which")
				b := bufs[i]
				if len(b) > 1 {
					if err := a.Free(b[1:]); err != ErrNotAllocated {
						t.Fatalf("Free of a tail: %v", err)
					}
				}
				if err := a.Free(b[:0]); err != nil {
					t.Fatal(err)
				}
				if err := a.Free(b); err != ErrNotAllocated {
					t.Fatalf("second Free: %v", err)
				}
				delete(spans, int(addressOf(b)-a.base))
				bufs = append(bufs[:i], bufs[i+1:]...)
			},
		})
		for _, b := range bufs {
			if err := a.Free(b); err != nil {
				t.Fatal(err)
			}
		}
		all, err := a.Alloc(1 << 20) // free blocks have joined
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Free(all), a.Close()); err != nil {
			t.Fatal(err)
		}
	})
	for _, b := range [][]byte{nil, make([]byte, 10), r.arena.Bytes()[:0], r.arena.Bytes()} {
		if err := r.arena.Free(b); err != ErrNotAllocated {
			t.Errorf("Free of %d bytes that were not allocated: %v", len(b), err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := r.arena.Alloc(n); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
}
