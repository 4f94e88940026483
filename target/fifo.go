package target

// fifo is a queue of slot numbers. A slot is in it at most once, so a ring of as
// many places never overflows.
type fifo struct {
	ring       []uint16
	head, tail uint32
}

func newFifo(n int) fifo {
	size := 1
	for size < n {
		size <<= 1
	}
	return fifo{ring: make([]uint16, size)}
}

func (f *fifo) empty() bool { return f.head == f.tail }

func (f *fifo) first() uint16 { return f.ring[f.head&uint32(len(f.ring)-1)] }

func (f *fifo) push(slot uint16) {
	f.ring[f.tail&uint32(len(f.ring)-1)] = slot
	f.tail++
}

func (f *fifo) pop() { f.head++ }
