package workload

import "slices"

// model is what a region holds.
type model []byte

// apply does to the model what an operation does to the region. p is what is
// written.
func (m *model) apply(o Op, p []byte) {
	end := o.Offset + o.Length
	switch o.Kind {
	case Write, WriteDirect, WriteMapped:
		m.grow(end)
		copy((*m)[o.Offset:], p)
	case Truncate:
		m.grow(o.Offset)
		*m = (*m)[:o.Offset]
	case Allocate:
		m.grow(end)
	case Punch, Zero, ZeroOut:
		if size := int64(len(*m)); o.Offset < size {
			clear((*m)[o.Offset:min(end, size)])
		}
	case Collapse:
		*m = slices.Delete(*m, int(o.Offset), int(end))
	case Insert:
		*m = slices.Insert(*m, int(o.Offset), make([]byte, o.Length)...)
	}
}

// grow adds zeroes up to a size.
func (m *model) grow(size int64) {
	if n := size - int64(len(*m)); n > 0 {
		*m = append(*m, make([]byte, n)...)
	}
}

// at returns what a read finds.
func (m model) at(o Op) []byte {
	size := int64(len(m))
	return m[min(o.Offset, size):min(o.Offset+o.Length, size)]
}
