package initiator

import "github.com/viablk/viablk/internal/block"

// opFifo holds the requests that wait to be cut.
type opFifo struct {
	ring       []uint16
	head, tail uint32
}

func powerOfTwo(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

func newOpFifo(n int) opFifo { return opFifo{ring: make([]uint16, powerOfTwo(n))} }

func (f *opFifo) empty() bool   { return f.head == f.tail }
func (f *opFifo) first() uint16 { return f.ring[f.head&uint32(len(f.ring)-1)] }
func (f *opFifo) pop()          { f.head++ }
func (f *opFifo) clear()        { f.head = f.tail }
func (f *opFifo) push(i uint16) {
	f.ring[f.tail&uint32(len(f.ring)-1)] = i
	f.tail++
}

// requestFifo holds finished requests that the owner has not reaped.
type requestFifo struct {
	ring       []*block.Request
	head, tail uint32
}

func newRequestFifo(n int) requestFifo {
	return requestFifo{ring: make([]*block.Request, powerOfTwo(n))}
}

func (f *requestFifo) empty() bool { return f.head == f.tail }
func (f *requestFifo) push(r *block.Request) {
	f.ring[f.tail&uint32(len(f.ring)-1)] = r
	f.tail++
}

func (f *requestFifo) pop(dst []*block.Request) int {
	n := 0
	for n < len(dst) && f.head != f.tail {
		i := f.head & uint32(len(f.ring)-1)
		dst[n], f.ring[i] = f.ring[i], nil
		f.head++
		n++
	}
	return n
}
