package block

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"
)

// striped is a disk of stripes, whose answers to a Status cover at most a
// number of extents. It executes in Submit.
type striped struct {
	size, stripe int64
	most         int   // extents of an answer
	fails        int64 // offset of requests that fail, if it is not 0
	asked        int
	done         []*Request
}

func (s *striped) Info() Info {
	return Info{Size: s.size, MinimumBlock: 1, PreferredBlock: 512, MaximumPayload: 1 << 20, Features: CanStatus}
}
func (s *striped) NewQueue(int) (Queue, error)     { return s, nil }
func (s *striped) Close() error                    { return nil }
func (s *striped) Reserve(*Request) bool           { return false }
func (s *striped) Release(*Request)                {}
func (s *striped) Kick()                           {}
func (s *striped) Abort()                          {}
func (s *striped) FD() int                         { return -1 }
func (s *striped) Arm() (d time.Duration, ok bool) { return -1, len(s.done) == 0 }
func (s *striped) Reap(dst []*Request) int {
	n := copy(dst, s.done)
	s.done = s.done[n:]
	return n
}

// Submit makes each third stripe a hole, and joins no neighbours.
func (s *striped) Submit(r *Request) bool {
	s.asked++
	s.done = append(s.done, r)
	if s.fails != 0 && r.Offset >= s.fails {
		r.Err = syscall.EIO
		return true
	}
	for off := r.Offset; len(r.Extents) < min(s.most, cap(r.Extents)) && off < r.Offset+r.Length; {
		end := min((off/s.stripe+1)*s.stripe, r.Offset+r.Length)
		r.Extents = append(r.Extents, Extent{Length: end - off, Flags: s.flags(off)})
		off = end
	}
	return true
}

func (s *striped) flags(off int64) ExtentFlags {
	if off/s.stripe%3 == 0 {
		return Hole | Zero
	}
	return 0
}

// TestExtents: the answers of several requests make one list without a gap,
// whose neighbours differ.
func TestExtents(t *testing.T) {
	const stripe = 1 << 20
	for _, most := range []int{1, 7, extentsOfCall} {
		s := &striped{size: 3000*stripe - 5, stripe: stripe, most: most}
		d, err := NewDisk(s)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []Extent
		for off := int64(0); off < s.size; off += stripe {
			e := Extent{Length: min(stripe, s.size-off), Flags: s.flags(off)}
			if n := len(want); n > 0 && want[n-1].Flags == e.Flags {
				want[n-1].Length += e.Length
			} else {
				want = append(want, e)
			}
		}
		next := int64(0)
		err = d.Extents(0, s.size, func(off int64, e Extent) error {
			if off != next {
				t.Fatalf("extent at %d, want it at %d", off, next)
			}
			next += e.Length
			got = append(got, e)
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("answers of %d: %v, %d extents, want %d", most, err, len(got), len(want))
		}
		if least := int(s.size / statusLength); s.asked < max(least, 3000/most) {
			t.Errorf("answers of %d: %d requests", most, s.asked)
		}
		stop := errors.New("enough")
		if err := d.Extents(stripe, 4*stripe, func(int64, Extent) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("a visit that fails: %v", err)
		}
	}
}

func TestExtentsThatFail(t *testing.T) {
	visit := func(int64, Extent) error { return nil }
	for name, c := range map[string]struct {
		disk        *striped
		off, length int64
		want        syscall.Errno
	}{
		"behind the end": {&striped{size: 4096, stripe: 512, most: 1}, 4096, 1, syscall.EINVAL},
		"no answer":      {&striped{size: 4096, stripe: 512}, 0, 4096, syscall.EIO},
		"error":          {&striped{size: 4096, stripe: 512, most: 1, fails: 1024}, 0, 4096, syscall.EIO},
		"nothing":        {&striped{size: 4096, stripe: 512}, 4096, 0, 0},
	} {
		d, err := NewDisk(c.disk)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Extents(c.off, c.length, visit); Errno(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
