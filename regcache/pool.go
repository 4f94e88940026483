package regcache

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/viablk/viablk/internal/buddy"
	"github.com/viablk/viablk/via"
)

// Pool is the bounce memory of one connection: a sparse arena, registered once
// and divided into buffers. A pool has one owner and no locks; only the owner
// calls its methods.
//
// Get returns the buffer that was Put last, while its lines are in a cache.
// Free blocks of each size wait on a short stack; the buddy allocator behind
// divides and joins blocks only when a stack is empty or full.
type Pool struct {
	arena   *via.Arena
	memory  *via.Memory
	bytes   []byte
	addr    uint64
	handle  uint32
	closed  bool
	retired bool // deregistered; no buffer is given out

	blocks      *buddy.Allocator
	stacks      []stack  // by order: blocks of minBlock << order bytes
	generations []uint32 // by unit: odd while its buffer is out
	pages       pages
	stats       PoolStats
}

// minBlock is the smallest block of a pool, and the alignment of small buffers.
const minBlock = 1024

// stackDepth limits the free blocks on a stack.
const stackDepth = 64

// stack holds offsets of free blocks of one size.
type stack struct {
	n, limit int
	offs     [stackDepth]uint32 // in units of minBlock
}

// hugePool is the size in bytes from which a pool asks for huge pages. A single
// buffer then occupies a huge page: expensive for the pools of a target, one
// for each of hundreds of connections, and cheap for the pool of a disk.
const hugePool = 32 << 20

// maximumPool limits the size of a pool, so that unit numbers fit in 32 bits.
const maximumPool = 1 << 40

// Buffer is a piece of a pool's registered memory, owned by the caller between
// Get and Put. Data, Addr and Handle are read-only; Data may be sliced.
type Buffer struct {
	Data   []byte // n bytes; its capacity is n
	Addr   uint64 // of the first byte, as peers name it
	Handle uint32 // of the pool's region

	generation uint32 // Pool.generations[unit] while the buffer is out
	unit       uint32
	size       int
	pool       *Pool
}

// NewPool maps and registers a pool of size bytes, rounded up to a power of two
// of at least a page. Pages exist once a buffer has used them.
func NewPool(nic *via.NIC, size int, attrs via.MemAttributes) (*Pool, error) {
	if size <= 0 || size > maximumPool {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, via.ErrInvalidParameter)
	}
	size = max(pageSize, 1<<bits.Len(uint(size-1)))
	arena, err := nic.NewArena(size)
	if err != nil {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, err)
	}
	if size >= hugePool {
		_ = adviseHuge(arena.Bytes()[:size]) // best effort
	}
	memory, err := nic.RegisterMem(arena.Bytes()[:size:size], attrs)
	if err != nil {
		return nil, fmt.Errorf("make pool of %d bytes: %w", size, errors.Join(err, arena.Close()))
	}
	p := &Pool{
		arena: arena, memory: memory, bytes: memory.Bytes(),
		addr: memory.Addr(), handle: memory.Handle(),
		blocks:      buddy.New(size, minBlock),
		generations: make([]uint32, size/minBlock),
		stats:       PoolStats{Size: size},
	}
	p.pages.init(size)
	// A stack holds at most a sixteenth of the pool, so that all stacks
	// together keep few blocks from being joined.
	for block := minBlock; block <= size/16; block *= 2 {
		p.stacks = append(p.stacks, stack{limit: min(stackDepth, size/16/block)})
	}
	return p, nil
}

// Get returns a buffer of n contiguous bytes, aligned to 1 KiB, from 4 KiB on
// to 4 KiB. It returns false if nothing fits now, n is not positive, or the
// pool is closed. The content is undefined. Get does not allocate.
func (p *Pool) Get(n int) (Buffer, bool) {
	if n <= 0 || n > len(p.bytes) || p.closed {
		p.stats.Refused++
		return Buffer{}, false
	}
	order := orderOf(n)
	unit, ok := p.allocate(n, order)
	if !ok {
		p.stats.Refused++
		return Buffer{}, false
	}
	p.generations[unit]++
	off := int(unit) * minBlock
	p.pages.use(off, n)
	p.stats.Gets++
	p.stats.Buffers++
	p.stats.InUse += minBlock << order
	p.stats.PeakInUse = max(p.stats.PeakInUse, p.stats.InUse)
	return Buffer{
		Data:   p.bytes[off : off+n : off+n],
		Addr:   p.addr + uint64(off),
		Handle: p.handle,
		unit:   unit, generation: p.generations[unit], size: n, pool: p,
	}, true
}

// Put returns a buffer to the pool. No posted descriptor may name its memory
// any more. Putting a buffer twice, or into another pool, is a programming
// error and panics.
func (p *Pool) Put(s Buffer) {
	if s.pool != p || p.generations[s.unit] != s.generation {
		panic(fmt.Sprintf("regcache: buffer at %#x is not in use in this pool", s.Addr))
	}
	p.generations[s.unit]++
	order := orderOf(s.size)
	p.stats.Buffers--
	p.stats.InUse -= minBlock << order
	off := int(s.unit) * minBlock
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

// Trim discards pages of free memory except for 4 MiB, and returns how many
// bytes. An owner that becomes idle calls it; Put does the same for memory that
// was unused for a period.
func (p *Pool) Trim() int {
	if p.closed {
		return 0
	}
	n := p.pages.discardFree(p.arena)
	p.stats.Discarded += uint64(n)
	return n
}

// Memory returns the pool's region; nil of the zero Pool, which gives nothing.
func (p *Pool) Memory() *via.Memory { return p.memory }

// Owns reports whether Get of this pool returned the buffer.
func (p *Pool) Owns(s *Buffer) bool { return s.pool == p }

// Retire deregisters a pool that its peer may still be inside, see
// via.ErrStillAccessed. From now on Get returns false. Buffers that are out
// stay their owner's until Put; nothing uses the memory until Close, which the
// owner calls when [via.Memory.Accessed] is false.
func (p *Pool) Retire() {
	if p.retired || p.closed {
		return
	}
	p.retired, p.bytes = true, nil
	_ = p.memory.Deregister() // says again that a peer is inside
}

// Release puts a buffer back into the pool that returned it, see Put.
func (s Buffer) Release() { s.pool.Put(s) }

// Close deregisters and unmaps the pool. It returns ErrInUse while buffers are
// out, and ErrClosed once it is closed.
func (p *Pool) Close() error {
	if p.closed {
		return ErrClosed
	}
	if p.stats.Buffers != 0 {
		return fmt.Errorf("close pool: %d buffers are out: %w", p.stats.Buffers, ErrInUse)
	}
	p.closed = true
	var err error
	if !p.retired {
		err = p.memory.Deregister()
	}
	err = errors.Join(err, p.arena.Close())
	p.bytes = nil
	if err != nil {
		return fmt.Errorf("close pool: %w", err)
	}
	return nil
}

// allocate returns a block of the order, from its stack or from the allocator.
func (p *Pool) allocate(n int, order uint) (unit uint32, ok bool) {
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
	return uint32(off / minBlock), ok
}

// unstack frees the blocks of all stacks to the allocator, which joins them. It
// returns false if the stacks were empty.
func (p *Pool) unstack() bool {
	some := false
	for i := range p.stacks {
		k := &p.stacks[i]
		for ; k.n > 0; k.n-- {
			p.blocks.Free(int(k.offs[k.n-1]) * minBlock)
			some = true
		}
	}
	return some
}

// orderOf returns the order of the block for n bytes.
func orderOf(n int) uint { return uint(bits.Len(uint((n - 1) / minBlock))) }

// PoolStats describes a pool. The counters only grow.
type PoolStats struct {
	Size      int    // bytes
	Buffers   int    // out
	InUse     int    // bytes of the blocks that are out
	PeakInUse int    // maximum of InUse
	Touched   int    // bytes that may have pages, in steps of 1 MiB
	Gets      uint64 // buffers returned by Get
	Refused   uint64 // Gets that found no space
	Discarded uint64 // bytes returned to the system
}

// Stats returns the pool's counters.
func (p *Pool) Stats() PoolStats {
	s := p.stats
	s.Touched = p.pages.touchedBytes()
	return s
}
