// Package arena maps the arenas of via/roce and via/verbs: anonymous memory
// outside the Go heap, for devices whose peers reach it through the network.
// The NIC that mapped an arena owns it until it unmaps it.
package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Arena is anonymous memory, a [via.ArenaMemory].
type Arena struct{ mem []byte }

// New maps size bytes, rounded up to pages, which exist once touched.
func New(size int) (*Arena, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("arena of %d bytes (limit %d): %w", size, int64(MaxSize), via.ErrInvalidParameter)
	}
	page := os.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, err)
	}
	return &Arena{mem}, nil
}

// MaxSize bounds an arena, bytes.
const MaxSize = 1 << 46

// Bytes returns the arena's memory.
func (a *Arena) Bytes() []byte { return a.mem }

// Discard gives whole pages back and clears the rest of the range.
func (a *Arena) Discard(off, n int) error {
	page := os.Getpagesize()
	first, last := (off+page-1)&^(page-1), (off+n)&^(page-1)
	if first >= last {
		clear(a.mem[off : off+n])
		return nil
	}
	clear(a.mem[off:first])
	clear(a.mem[last : off+n])
	if err := unix.Madvise(a.mem[first:last], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("discard arena pages: %w", err)
	}
	return nil
}

// Close unmaps the arena. No region is registered in it.
func (a *Arena) Close() error {
	if err := unix.Munmap(a.mem); err != nil {
		return fmt.Errorf("unmap arena: %w", err)
	}
	return nil
}
