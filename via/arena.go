package via

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Arena is memory mapped by the NIC, outside the Go heap, in which regions that
// peers may access are registered. Arenas are sparse: pages exist once touched.
type Arena struct {
	nic     *NIC
	mem     ArenaMemory
	bytes   []byte
	base    uint64
	regions atomic.Int32

	mu     sync.RWMutex // held while pages are discarded or unmapped
	closed bool
}

// NewArena maps size bytes, rounded up to pages.
func (n *NIC) NewArena(size int) (*Arena, error) {
	if size <= 0 || uint64(size) > n.limits.MaxRegisterBytes {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, ErrInvalidParameter)
	}
	mem, err := n.adapter.MapArena(size)
	if err != nil {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, err)
	}
	a := &Arena{nic: n, mem: mem, bytes: mem.Bytes(), base: addressOf(mem.Bytes())}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = mem.Close()
		return nil, fmt.Errorf("map arena: nic is closed: %w", ErrInvalidParameter)
	}
	n.arenas[a] = struct{}{}
	return a, nil
}

// Bytes returns the arena's memory. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.bytes }

// Memory returns what the adapter mapped, for the provider that did.
func (a *Arena) Memory() ArenaMemory { return a.mem }

// Discard gives the pages of a range back to the system; the range reads as
// zeroes afterwards. Registrations stay valid.
func (a *Arena) Discard(off, n int) error {
	if off < 0 || n < 0 || off > len(a.bytes)-n {
		return fmt.Errorf("discard [%d, +%d) of an arena of %d bytes: %w", off, n, len(a.bytes), ErrInvalidParameter)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		return fmt.Errorf("discard: arena is unmapped: %w", ErrInvalidParameter)
	}
	if n == 0 {
		return nil // not every system takes an empty range
	}
	return a.mem.Discard(off, n)
}

// Close unmaps the arena. It returns ErrResource while regions are registered in
// it. No descriptor that names its memory may be posted.
func (a *Arena) Close() error {
	a.nic.mu.Lock()
	if c := a.regions.Load(); c != 0 {
		a.nic.mu.Unlock()
		return fmt.Errorf("unmap arena: %d regions are registered in it: %w", c, ErrResource)
	}
	if _, ok := a.nic.arenas[a]; !ok {
		a.nic.mu.Unlock()
		return fmt.Errorf("unmap arena: already unmapped: %w", ErrInvalidParameter)
	}
	delete(a.nic.arenas, a)
	a.nic.mu.Unlock()
	return a.unmap()
}

// unmap unmaps the arena; a Discard under way ends first.
func (a *Arena) unmap() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if err := a.mem.Close(); err != nil {
		return fmt.Errorf("unmap arena: %w", err)
	}
	return nil
}

// arenaOfLocked returns the arena that contains [addr, addr+n), or nil.
//
// +checklocks:n.mu
func (n *NIC) arenaOfLocked(addr, size uint64) *Arena {
	for a := range n.arenas {
		if addr >= a.base && size <= uint64(len(a.bytes)) && addr-a.base <= uint64(len(a.bytes))-size {
			return a
		}
	}
	return nil
}
