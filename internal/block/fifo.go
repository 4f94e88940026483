package block

// fifo is a ring of requests.
type fifo struct {
	items []*Request // a power of two
	head  int        // next to pop; taken modulo the ring
	n     int        // requests in the ring
}

func newFIFO(capacity int) fifo {
	size := 1
	for size < capacity {
		size *= 2
	}
	return fifo{items: make([]*Request, size)}
}

// push adds r, for which there must be room.
func (f *fifo) push(r *Request) {
	f.items[(f.head+f.n)&(len(f.items)-1)] = r
	f.n++
}

// pop moves the oldest requests to dst and returns how many.
func (f *fifo) pop(dst []*Request) int {
	n := min(len(dst), f.n)
	for i := range n {
		at := f.head & (len(f.items) - 1)
		dst[i], f.items[at] = f.items[at], nil
		f.head++
	}
	f.n -= n
	return n
}
