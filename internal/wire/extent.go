package wire

// Bits of Extent.Flags. Receivers ignore unknown bits; 0 states nothing.
const (
	ExtentHole uint32 = 1 << iota // nothing is allocated
	ExtentZero                    // reads as zeroes
)

// Extent is a part of the range that a command with OpBlockStatus asks about.
// The reply's payload is a list of them, from the start of the range and
// without gaps.
type Extent struct {
	Length uint32 // bytes, > 0
	Flags  uint32 // Extent bits
}

// Offsets of an extent.
const (
	extentAtLength = 0 // > 0; all together ≤ Length of the command
	// 1 hole: nothing is allocated, 2 zero: reads as zeroes; others are
	// ignored
	extentAtFlags = 4
	extentSize    = ExtentSize
)

// MaxExtentBytes is the longest list of extents in a reply, in bytes.
const MaxExtentBytes = 4096

// Refusals of lists of extents alone.
var errExtents = refusal(ErrMalformed, "extents do not fit the range")

// Encode writes the extent to the first ExtentSize bytes of b.
func (e Extent) Encode(b []byte) {
	p := (*[extentSize]byte)(b)
	le.PutUint32(p[extentAtLength:], e.Length)
	le.PutUint32(p[extentAtFlags:], e.Flags)
}

// ExtentAt returns the extent with the index i of a list that [CheckExtents]
// accepted.
func ExtentAt(list []byte, i int) Extent {
	p := (*[extentSize]byte)(list[i*extentSize:])
	return Extent{le.Uint32(p[extentAtLength:]), le.Uint32(p[extentAtFlags:])}
}

// CheckExtents verifies the payload of a reply to a command of length bytes
// with OpBlockStatus, and returns how many extents it has: at least one, and
// together not longer than the range. It does not allocate.
func CheckExtents(list []byte, length uint32) (int, error) {
	n := len(list) / extentSize
	if n == 0 || n*extentSize != len(list) || len(list) > MaxExtentBytes {
		return 0, errExtents
	}
	var sum uint64
	for i := range n {
		e := ExtentAt(list, i)
		if e.Length == 0 {
			return 0, errExtents
		}
		sum += uint64(e.Length)
	}
	if sum > uint64(length) {
		return 0, errExtents
	}
	return n, nil
}
