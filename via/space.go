package via

import (
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/buddy"
)

// space divides an arena into blocks by the buddy system (MyVIA's memory
// agent). An arena divided by its owner never creates the allocator.
type space struct {
	mu sync.Mutex
	// +checklocks:mu
	blocks *buddy.Allocator // nil before the first Alloc
}

// Blocks of a space. The allocator takes nine bytes for each of the smallest.
const (
	leastBlock = DescriptorAlignment
	mostBlocks = 1 << 20
)

// Alloc returns size bytes of the arena. Their block is a power of two of at
// least 64 bytes, or of a millionth of an arena of more than 64 MiB, and begins
// at a multiple of its size, or of a page if that is less: a descriptor may lie
// anywhere in it. The content is undefined. An arena whose size is no power of
// two gives out all of it, in blocks no larger than the largest power of two in
// it. Alloc returns ErrResource if no free block is large enough. It is safe
// for concurrent use, and not for an arena that its owner divides.
//
// One region registered over [Arena.Bytes] holds whatever a connection needs.
func (a *Arena) Alloc(size int) ([]byte, error) {
	if !a.made() {
		return nil, noObject("allocate")
	}
	if size <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, ErrInvalidParameter)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		return nil, fmt.Errorf("allocate: arena is unmapped: %w", ErrInvalidParameter)
	}
	s := &a.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		least := powerOfTwo(max(leastBlock, (len(a.bytes)+mostBlocks-1)/mostBlocks))
		s.blocks = buddy.New(len(a.bytes)&^(least-1), least)
	}
	off, ok := s.blocks.Alloc(size)
	if !ok {
		return nil, fmt.Errorf("allocate %d bytes of an arena of %d, %d free: %w",
			size, len(a.bytes), s.blocks.Available(), ErrResource)
	}
	return a.bytes[off : off+size : off+size], nil
}

// Free gives back what Alloc returned, or its beginning. The caller uses the
// memory no more. Free returns ErrInvalidParameter for memory that Alloc did
// not return, or that is free.
func (a *Arena) Free(b []byte) error {
	if !a.made() {
		return noObject("free")
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		return fmt.Errorf("free: arena is unmapped: %w", ErrInvalidParameter)
	}
	s := &a.space
	s.mu.Lock()
	defer s.mu.Unlock()
	off := addressOf(b) - a.base
	if cap(b) == 0 || off >= uint64(len(a.bytes)) || s.blocks == nil {
		return fmt.Errorf("free %d bytes that are not of this arena: %w", len(b), ErrInvalidParameter)
	}
	if size, ok := s.blocks.Allocated(int(off)); !ok || cap(b) > size {
		return fmt.Errorf("free %d bytes at %d of an arena, which are not allocated: %w", len(b), off, ErrInvalidParameter)
	}
	s.blocks.Free(int(off))
	return nil
}
