package regcache

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// Arena is mapped memory whose granules the cache registers. It is sparse:
// pages exist once written. Its methods are safe for concurrent use.
type Arena struct {
	cache    *Cache
	memory   *via.Arena // nil if adopted
	bytes    []byte
	base     uint64 // address of bytes, a multiple of the granule
	size     uint64
	granules []granuleIndex
	first    uint64 // number of the first granule, see region.key
	closed   atomic.Bool

	closing sync.Mutex // serialises Close
	// +checklocks:closing
	unmapped bool

	space space
}

// NewArena maps an arena of size bytes, rounded up to granules.
func (c *Cache) NewArena(size int) (*Arena, error) {
	if size <= 0 || size > granuleNumbers<<c.shift {
		return nil, fmt.Errorf("map arena of %d bytes: %w", size, via.ErrInvalidParameter)
	}
	if c.closed.Load() {
		return nil, fmt.Errorf("map arena: %w", ErrClosed)
	}
	granules := (size + c.granule - 1) >> c.shift
	size = granules << c.shift
	// One granule more than requested, so that the arena can begin at a
	// multiple of a granule: huge pages and page tables of NICs want it.
	// Untouched memory costs nothing.
	memory, err := c.nic.NewArena(size + c.granule)
	if err != nil {
		return nil, err
	}
	bytes := memory.Bytes()
	skip := int(-addressOf(bytes) & uint64(c.granule-1))
	a := c.arenaOver(bytes[skip : skip+size : skip+size])
	a.memory = memory
	c.huge.advise(a.bytes)
	if err := c.admit(a); err != nil {
		return nil, errors.Join(fmt.Errorf("map arena: %w", err), memory.Close())
	}
	return a, nil
}

// Adopt makes an arena of memory, such as a mapped file, that its owner maps
// and unmaps; the owner unmaps it after Close has returned nil. The memory
// begins at a page; its last granule may be partial. It can be leased for local
// use only, with no Access, and only if the NIC registers memory of its kind.
func (c *Cache) Adopt(mapped []byte) (*Arena, error) {
	if len(mapped) == 0 || addressOf(mapped)&(pageSize-1) != 0 || len(mapped) > granuleNumbers<<c.shift {
		return nil, fmt.Errorf("adopt %d bytes at %#x: %w", len(mapped), addressOf(mapped), via.ErrInvalidParameter)
	}
	a := c.arenaOver(mapped)
	if err := c.admit(a); err != nil {
		return nil, fmt.Errorf("adopt memory: %w", err)
	}
	return a, nil
}

// arenaOver returns an arena that the cache does not know yet.
func (c *Cache) arenaOver(mem []byte) *Arena {
	return &Arena{
		cache:    c,
		bytes:    mem,
		base:     addressOf(mem),
		size:     uint64(len(mem)),
		granules: make([]granuleIndex, (len(mem)+c.granule-1)>>c.shift),
	}
}

// granuleBytes returns the memory of a granule. Only the last granule of an
// adopted arena is shorter than the others.
func (a *Arena) granuleBytes(i int) []byte {
	off := i << a.cache.shift
	end := min(off+a.cache.granule, len(a.bytes))
	return a.bytes[off:end:end]
}

// admit numbers an arena's granules and publishes the arena.
func (c *Cache) admit(a *Arena) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	// Use the first gap in the numbers that is large enough.
	slices.SortFunc(c.mapped, func(x, y *Arena) int { return int(int64(x.first) - int64(y.first)) })
	for _, b := range c.mapped {
		if b.first >= a.first+uint64(len(a.granules)) {
			break
		}
		a.first = b.first + uint64(len(b.granules))
	}
	if a.first+uint64(len(a.granules)) > granuleNumbers {
		return fmt.Errorf("more than %d granules: %w", granuleNumbers, via.ErrResource)
	}
	c.mapped = append(c.mapped, a)
	c.publishLocked()
	return nil
}

// publishLocked builds the table of the open arenas.
//
// +checklocks:c.mu
func (c *Cache) publishLocked() {
	table := make([]arenaRange, 0, len(c.mapped))
	for _, a := range c.mapped {
		if !a.closed.Load() {
			table = append(table, arenaRange{a.base, a.size, a})
		}
	}
	sort.Slice(table, func(i, k int) bool { return table[i].base < table[k].base })
	c.arenas.Store(&table)
}

// Contains reports whether an address is in the arena.
func (a *Arena) Contains(addr uint64) bool { return addr-a.base < a.size }

// Bytes returns the arena's memory, for a caller that divides it instead of
// Alloc. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.bytes }

// Close withdraws the arena's registrations and unmaps it. It returns ErrInUse
// while leases or allocated buffers are out; from the first call on, the arena
// hands out neither. Closing a closed arena does nothing.
func (a *Arena) Close() error {
	a.closing.Lock()
	defer a.closing.Unlock()
	if a.unmapped {
		return nil
	}
	a.shut()
	leased := 0
	for i := range a.granules {
		leased += a.cache.withdraw(&a.granules[i])
	}
	if buffers := a.space.close(); leased > 0 || buffers > 0 {
		return fmt.Errorf("unmap arena: %d registrations are leased, %d buffers allocated: %w",
			leased, buffers, ErrInUse)
	}
	c := a.cache
	c.mu.Lock()
	c.mapped = slices.DeleteFunc(c.mapped, func(b *Arena) bool { return b == a })
	c.mu.Unlock()
	a.unmapped = true
	if a.memory == nil {
		return nil
	}
	return a.memory.Close()
}

// shut ends lookups and misses. A miss in progress finishes before withdraw
// acquires the granule's lock.
func (a *Arena) shut() {
	a.cache.mu.Lock()
	defer a.cache.mu.Unlock()
	if !a.closed.Swap(true) {
		a.cache.publishLocked()
	}
}
