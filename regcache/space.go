package regcache

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/viablk/viablk/internal/buddy"
	"github.com/viablk/viablk/via"
)

// space divides an arena into buffers. An arena divided by its owner never
// makes the allocator.
type space struct {
	mu      sync.Mutex // taken alone
	blocks  *buddy.Allocator
	lengths map[int]int // of the allocated buffers, by offset
	closed  bool
}

// smallest is the smallest buffer, a page.
const smallest = 4096

// Alloc returns a buffer of n bytes, aligned to a page. A buffer of up to a
// granule lies within one, so that one lease covers it; a larger one begins at
// a granule. Its content is undefined. The error wraps ENOMEM if nothing fits.
func (a *Arena) Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, via.ErrInvalidParameter)
	}
	s := &a.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.blocks == nil {
		s.blocks = buddy.New(len(a.bytes), smallest)
		s.lengths = make(map[int]int)
	}
	off, ok := s.blocks.Alloc(n)
	if !ok {
		return nil, fmt.Errorf("allocate %d bytes of an arena of %d, %d free: %w",
			n, len(a.bytes), s.blocks.Available(), syscall.ENOMEM)
	}
	s.lengths[off] = n
	return a.bytes[off : off+n : off+n], nil
}

// Free gives back a buffer of Alloc, or its beginning. Leases of it have been
// released, and nobody uses it any more. What Alloc did not return, or Free has
// taken already, is ErrNotAllocated.
//
// Registrations of the granule stay: a peer that was told the address can reach
// the memory's next user. Invalidate the buffer first where that matters.
func (a *Arena) Free(buf []byte) error {
	off := addressOf(buf) - a.base
	if cap(buf) == 0 || off >= a.size {
		return ErrNotAllocated
	}
	s := &a.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.lengths[int(off)]; !ok {
		return ErrNotAllocated
	}
	delete(s.lengths, int(off))
	s.blocks.Free(int(off))
	return nil
}

// close ends allocation and returns how many buffers are out.
func (s *space) close() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return len(s.lengths)
}
