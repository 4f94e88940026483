package block

// ExtentFlags say what is known of a part of a disk. The numbers are those of
// the NBD protocol ("base:allocation metadata context"). 0 is always true.
type ExtentFlags uint32

// The flags.
const (
	Hole ExtentFlags = 1 << iota // nothing is allocated
	Zero                         // reads as zeroes

	// KnownExtentFlags are all of them.
	KnownExtentFlags = 1<<iota - 1
)

// Extent is a part of a disk that is one thing throughout.
type Extent struct {
	Length int64 // bytes, > 0
	Flags  ExtentFlags
}

// AddExtent appends what is known of the next length bytes to the answer of a
// Status, or makes the last extent longer if that is the same. The part beyond
// the request's range is ignored. It returns false when no more is wanted: the
// range is covered, or the caller's memory is full. An answer covers the
// beginning of the range, at least one byte and no gap.
func (r *Request) AddExtent(length int64, flags ExtentFlags) bool {
	left := r.Length - r.Covered()
	length = min(length, left)
	if length <= 0 {
		return left > 0
	}
	last := len(r.Extents) - 1
	switch {
	case last >= 0 && r.Extents[last].Flags == flags:
		r.Extents[last].Length += length
	case len(r.Extents) < cap(r.Extents):
		r.Extents = append(r.Extents, Extent{length, flags})
	default:
		return false
	}
	return length < left
}

// Covered returns how many bytes of the range the answer of a Status is about.
func (r *Request) Covered() int64 {
	var sum int64
	for i := range r.Extents {
		sum += r.Extents[i].Length
	}
	return sum
}

// AlignExtents appends extents to dst, up to its capacity, with lengths that
// are multiples of align, which is a power of two and divides the offset of the
// first. A block of several extents has the flags that all of them have. An
// incomplete block at the end is dropped; a single such block has no flags.
func AlignExtents(dst, extents []Extent, align int64) []Extent {
	answer := Request{Length: 1 << 62, Extents: dst[:0]}
	var part int64 // bytes of a block that began
	var mixed ExtentFlags
	for _, e := range extents {
		if part > 0 {
			n := min(align-part, e.Length)
			part, mixed, e.Length = part+n, mixed&e.Flags, e.Length-n
			if part < align {
				continue
			}
			if !answer.AddExtent(align, mixed) {
				return answer.Extents
			}
		}
		if !answer.AddExtent(e.Length&^(align-1), e.Flags) {
			return answer.Extents
		}
		part, mixed = e.Length&(align-1), e.Flags
	}
	if len(answer.Extents) == 0 {
		answer.AddExtent(align, 0)
	}
	return answer.Extents
}
