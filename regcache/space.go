package regcache

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/viablk/viablk/internal/buddy"
	"github.com/viablk/viablk/via"
)

// space allocates buffers of an arena. The allocator is made by the first
// Alloc.
type space struct {
	mu sync.Mutex // held alone
	// +checklocks:mu
	blocks *buddy.Allocator
	// lengths holds the lengths of allocated buffers by offset.
	// +checklocks:mu
	lengths map[int]int
	// +checklocks:mu
	closed bool
}

// pageSize is the size of the smallest buffer.
const pageSize = 4096

// Alloc returns a buffer of n bytes, aligned to a page. A buffer of up to a
// granule lies within one, so that one lease covers it; a larger one begins at
// a granule. Its content is undefined. The error wraps ENOMEM if no space fits.
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
		s.blocks = buddy.New(len(a.bytes), pageSize)
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

// Free returns a buffer of Alloc, or a prefix of it. The caller has released
// its leases and no longer uses it. Free returns ErrNotAllocated for a buffer
// that Alloc did not return or that is free already.
//
// Registrations of the granule stay: a peer that knows the address can reach
// the memory's next user. Where that matters the caller invalidates the buffer
// first.
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
