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
	// +checklocks:mu
	space space

	mu sync.RWMutex // held while pages are discarded or unmapped
	// +checklocks:mu
	closed bool
}

// NewArena maps size bytes, rounded up to pages.
func (n *NIC) NewArena(size int) (*Arena, error) {
	if !n.made() {
		return nil, noObject("map arena")
	}
	if size <= 0 || uint64(size) > n.limits.MaxRegisterBytes {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, ErrInvalidParameter)
	}
	if err := n.usable(); err != nil {
		return nil, fmt.Errorf("map arena: %w", err)
	}
	g := n.agent
	g.stats.Objects.Add(1)
	mem, err := g.adapter.MapArena(size)
	g.noteFailure(err)
	if err != nil {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, withCode(err, ErrResource))
	}
	a := &Arena{nic: n, mem: mem, bytes: mem.Bytes(), base: addressOf(mem.Bytes())}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usableLocked(); err != nil {
		_ = mem.Close()
		return nil, fmt.Errorf("map arena: %w", err)
	}
	g.arenas[a] = struct{}{}
	return a, nil
}

// made reports whether NewArena made the arena.
func (a *Arena) made() bool { return a != nil && a.nic != nil }

// Bytes returns the arena's memory. It must not be used after Close.
func (a *Arena) Bytes() []byte {
	if a == nil {
		return nil
	}
	return a.bytes
}

// Memory returns what the adapter mapped, for the provider that did.
func (a *Arena) Memory() ArenaMemory {
	if a == nil {
		return nil
	}
	return a.mem
}

// Discard gives the pages of a range back to the system; the range reads as
// zeroes afterwards. Registrations stay valid.
func (a *Arena) Discard(off, n int) error {
	if !a.made() {
		return noObject("discard")
	}
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
	return withCode(a.mem.Discard(off, n), ErrResource)
}

// Close unmaps the arena. It returns ErrResource while regions are registered
// in it. No descriptor that names its memory may be posted.
func (a *Arena) Close() error {
	if !a.made() {
		return noObject("unmap arena")
	}
	g := a.nic.agent
	g.mu.Lock()
	if c := a.regions.Load(); c != 0 {
		g.mu.Unlock()
		return fmt.Errorf("unmap arena: %d regions are registered in it: %w", c, ErrResource)
	}
	if _, ok := g.arenas[a]; !ok {
		g.mu.Unlock()
		return fmt.Errorf("unmap arena: already unmapped: %w", ErrInvalidParameter)
	}
	delete(g.arenas, a)
	g.mu.Unlock()
	g.stats.Objects.Add(1)
	return a.unmap()
}

// unmap unmaps the arena, once a Discard in progress has ended.
func (a *Arena) unmap() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if err := a.mem.Close(); err != nil {
		return fmt.Errorf("unmap arena: %w", withCode(err, ErrResource))
	}
	return nil
}

// arenaOfLocked returns the arena that contains [addr, addr+n), or nil.
//
// +checklocks:g.mu
func (g *agent) arenaOfLocked(addr, size uint64) *Arena {
	for a := range g.arenas {
		if addr >= a.base && size <= uint64(len(a.bytes)) && addr-a.base <= uint64(len(a.bytes))-size {
			return a
		}
	}
	return nil
}
