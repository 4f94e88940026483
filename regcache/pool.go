package regcache

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/viablk/viablk/internal/buddy"
	"github.com/viablk/viablk/via"
)

// Pool is the bounce memory of one connection: a sparse arena, registered once,
// from which slots are cut. A pool has one owner and no locks; all its methods
// are the owner's.
//
// The slot given back last is given out first, while its lines are in a cache.
// Blocks of each size wait on a short stack of their own; the allocator behind
// divides and joins blocks only when a stack is empty or full.
type Pool struct {
	arena  *via.Arena
	memory *via.Memory
	bytes  []byte
	addr   uint64
	handle uint32
	closed bool

	blocks *buddy.Allocator
	stacks []stack  // by order: blocks of leastSlot << order bytes
	holder []uint32 // by unit: odd while a slot that begins there is out
	pages  pages
	stats  PoolStats
}

// leastSlot is the smallest block of a pool, and the alignment of small slots.
const leastSlot = 1024

// stackDepth limits the blocks that wait on a stack.
const stackDepth = 64

// stack holds offsets of free blocks of one size.
type stack struct {
	n, limit int
	offs     [stackDepth]uint32 // in units of leastSlot
}

// hugePool is from which size on a pool asks for huge pages, in bytes. Its pages
// exist once they are used, so that one slot costs a huge page: much for the pools of
// a target, one for each of hundreds of connections, and little for the one of a disk.
const hugePool = 32 << 20

// maximumPool limits the size of a pool; unit numbers fit in 32 bits.
const maximumPool = 1 << 40

// Slot is a piece of registered memory, in its owner's hands between Get and
// Put. Data, Addr and Handle are for reading; Data may be sliced on the way.
type Slot struct {
	Data   []byte // the n bytes asked for; capacity ends with them
	Addr   uint64 // of the first byte, as peers name it
	Handle uint32 // of the pool's region

	holder uint32 // what Pool.holder[unit] is while the slot is out
	unit   uint32
	size   int
	pool   *Pool
}

// NewPool maps and registers a pool of size bytes, rounded up to a power of two
// of at least a page. Pages exist once a slot has used them.
func NewPool(nic *via.NIC, size int, attrs via.MemAttributes) (*Pool, error) {
	if size <= 0 || size > maximumPool {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, via.ErrInvalidParameter)
	}
	size = max(smallest, 1<<bits.Len(uint(size-1)))
	arena, err := nic.NewArena(size)
	if err != nil {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, err)
	}
	if size >= hugePool {
		_ = adviseHuge(arena.Bytes()[:size]) // a wish
	}
	memory, err := nic.RegisterMem(arena.Bytes()[:size:size], attrs)
	if err != nil {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, errors.Join(err, arena.Close()))
	}
	p := &Pool{
		arena: arena, memory: memory, bytes: memory.Bytes(),
		addr: memory.Addr(), handle: memory.Handle(),
		blocks: buddy.New(size, leastSlot),
		holder: make([]uint32, size/leastSlot),
		stats:  PoolStats{Size: size},
	}
	p.pages.init(size)
	// A stack holds at most a sixteenth of the pool, so that all of them
	// together keep the allocator from joining blocks only for as long as there
	// is room.
	for block := leastSlot; block <= size/16; block *= 2 {
		p.stacks = append(p.stacks, stack{limit: min(stackDepth, size/16/block)})
	}
	return p, nil
}

// Get returns a slot of n contiguous bytes, which begin at a multiple of 1 KiB,
// from 4 KiB on at a multiple of 4 KiB. It returns false if nothing fits now, n
// is not positive, or the pool is closed. The content is undefined: zeroes or
// what was there. It does not allocate.
func (p *Pool) Get(n int) (Slot, bool) {
	if n <= 0 || n > len(p.bytes) || p.closed {
		p.stats.Refused++
		return Slot{}, false
	}
	order := orderOf(n)
	unit, ok := p.take(n, order)
	if !ok {
		p.stats.Refused++
		return Slot{}, false
	}
	p.holder[unit]++
	off := int(unit) * leastSlot
	p.pages.use(off, n)
	p.stats.Gets++
	p.stats.Slots++
	p.stats.InUse += leastSlot << order
	p.stats.PeakInUse = max(p.stats.PeakInUse, p.stats.InUse)
	return Slot{
		Data:   p.bytes[off : off+n : off+n],
		Addr:   p.addr + uint64(off),
		Handle: p.handle,
		unit:   unit, holder: p.holder[unit], size: n, pool: p,
	}, true
}

// Put gives a slot back. No descriptor that names its memory may still be
// posted. To put a slot twice, or into another pool, is a mistake of the
// program and panics.
func (p *Pool) Put(s Slot) {
	if s.pool != p || p.holder[s.unit] != s.holder {
		panic(fmt.Sprintf("regcache: slot at %#x is not out of this pool", s.Addr))
	}
	p.holder[s.unit]++
	order := orderOf(s.size)
	p.stats.Slots--
	p.stats.InUse -= leastSlot << order
	off := int(s.unit) * leastSlot
	if int(order) < len(p.stacks) && p.stacks[order].n < p.stacks[order].limit {
		k := &p.stacks[order]
		k.offs[k.n] = s.unit
		k.n++
	} else {
		p.blocks.Free(off)
	}
	if p.pages.release(off, s.size) {
		p.stats.Discarded += p.pages.discardOld(p.arena)
	}
}

// Trim gives pages of free memory back to the system but for 4 MiB, and returns
// how many bytes. An owner that goes to sleep for long calls it; while slots
// come and go, Put does the same for memory that was not needed for long.
func (p *Pool) Trim() int {
	if p.closed {
		return 0
	}
	n := p.pages.discardFree(p.arena)
	p.stats.Discarded += uint64(n)
	return n
}

// Memory returns the pool's region.
func (p *Pool) Memory() *via.Memory { return p.memory }

// Close deregisters and unmaps the pool. It returns ErrInUse while slots are
// out, and ErrClosed once it is closed.
func (p *Pool) Close() error {
	if p.closed {
		return ErrClosed
	}
	if p.stats.Slots != 0 {
		return fmt.Errorf("close pool: %d slots are out: %w", p.stats.Slots, ErrInUse)
	}
	p.closed = true
	err := errors.Join(p.memory.Deregister(), p.arena.Close())
	p.bytes = nil
	if err != nil {
		return fmt.Errorf("close pool: %w", err)
	}
	return nil
}

// take returns a block of the order, from its stack or from the allocator.
func (p *Pool) take(n int, order uint) (unit uint32, ok bool) {
	if int(order) < len(p.stacks) {
		if k := &p.stacks[order]; k.n > 0 {
			k.n--
			return k.offs[k.n], true
		}
	}
	off, ok := p.blocks.Alloc(n)
	if !ok && p.unstack() {
		off, ok = p.blocks.Alloc(n)
	}
	return uint32(off / leastSlot), ok
}

// unstack gives the blocks of all stacks to the allocator, which joins them. It
// returns false if there were none.
func (p *Pool) unstack() bool {
	some := false
	for i := range p.stacks {
		k := &p.stacks[i]
		for ; k.n > 0; k.n-- {
			p.blocks.Free(int(k.offs[k.n-1]) * leastSlot)
			some = true
		}
	}
	return some
}

// orderOf returns the order of the block for n bytes.
func orderOf(n int) uint { return uint(bits.Len(uint((n - 1) / leastSlot))) }

// PoolStats describe a pool. The counters only grow.
type PoolStats struct {
	Size      int    // bytes
	Slots     int    // out
	InUse     int    // bytes of the blocks that are out
	PeakInUse int    // the most there were, bytes
	Touched   int    // bytes that may have pages, in steps of 1 MiB
	Gets      uint64 // slots given out
	Refused   uint64 // requests that nothing fitted
	Discarded uint64 // bytes given back to the system
}

// Stats returns the pool's counters.
func (p *Pool) Stats() PoolStats {
	s := p.stats
	s.Touched = p.pages.touchedBytes()
	return s
}
