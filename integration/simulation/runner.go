package simulation

import (
	"io"
	"math/bits"
)

// Runner carries out plans, one at a time, and keeps the memory of each run for
// later ones. A run depends on its plan alone.
//
// One goroutine at a time uses a runner.
type Runner struct {
	memory     store
	accesses   slab[access]
	coroutines []*coroutine // without a task
	deliveries []*delivery
	executions []*execution
}

// NewRunner returns a runner that has no memory yet.
func NewRunner() *Runner { return new(Runner) }

// Close ends the goroutines of the runner.
func (r *Runner) Close() {
	for _, c := range r.coroutines {
		c.stop()
	}
	r.coroutines = nil
}

// Run carries out a plan alone.
func Run(p Plan, output io.Writer) Result {
	r := NewRunner()
	defer r.Close()
	return r.Run(p, output)
}

// store is memory by size, a power of two of bytes. Its content is undefined,
// as that of an allocator's memory: a run that depends on it is wrong.
type store struct{ free [48][][]byte }

// leastStored is the least size in bytes.
const leastStored = 512

func class(size int) int { return bits.Len(uint(max(size, leastStored) - 1)) }

// get returns memory. From a page on it begins at a page.
func (s *store) get(size int) []byte {
	free := &s.free[class(size)]
	k := len(*free)
	if k == 0 {
		return make([]byte, size, 1<<class(size))
	}
	b := (*free)[k-1]
	*free = (*free)[:k-1]
	return b[:size]
}

// put takes memory back that get returned.
func (s *store) put(b []byte) {
	if cap(b) == 1<<class(cap(b)) {
		free := &s.free[class(cap(b))]
		*free = append(*free, b)
	}
}

// slab gives out values that live as long as a run.
type slab[T any] struct {
	blocks [][]T
	block  int // that values are from
	used   int // of it
}

const slabSize = 256

// get returns a zero value.
func (s *slab[T]) get() *T {
	if s.block == len(s.blocks) {
		s.blocks = append(s.blocks, make([]T, slabSize))
	}
	v := &s.blocks[s.block][s.used]
	var zero T
	*v = zero
	if s.used++; s.used == slabSize {
		s.block, s.used = s.block+1, 0
	}
	return v
}

// reset takes all values back.
func (s *slab[T]) reset() { s.block, s.used = 0, 0 }
