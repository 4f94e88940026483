// Package buddy is the buddy allocator of arenas, pools of bounce buffers and
// buffers of queues (via, regcache, internal/block). An allocator owns its
// book-keeping and hands out offsets of a region, whose memory is the caller's.
//
// It knows no memory: it divides the numbers [0, size) into blocks of powers of
// two, whatever the size, so one allocator serves private memory, registered
// memory and anything else that has a beginning and a length. A freed block
// joins its free buddy at once, and the block freed last is given out first,
// because its lines may still be in a cache of the processor.
//
// The book-keeping is nine bytes per smallest block, made once, on the heap or
// in memory of the caller's. Alloc and Free allocate nothing and take
// O(log(size/minBlock)) steps.
package buddy

import (
	"fmt"
	"math/bits"
)

// State of a unit, the smallest block, in Allocator.state. A unit that does not
// begin a block has state zero; the others add the order of their block.
const (
	isFree  = 0x40
	isUsed  = 0x80
	orderOf = 0x3f
)

// maximumUnits keeps unit numbers, plus one, within the links.
const maximumUnits = 1 << 31

// Allocator divides a region. It is not safe for concurrent use.
type Allocator struct {
	shift     uint   // log2 of the bytes of a unit
	top       uint   // order of the largest block
	available int    // bytes free
	orders    uint64 // bit k is set if heads[k] lists a block

	// The free blocks of each order form a doubly linked list, newest first. A
	// link is the number of a unit plus one, so that zero ends a list.
	heads      []uint32
	next, prev []uint32
	state      []uint8
}

// New returns an allocator for size bytes in blocks of at least minBlock bytes,
// a power of two of which size is a multiple; anything else is a mistake of the
// program and panics. A size that is no power of two has no block that is all
// of it: the largest are those of its binary digits.
func New(size, minBlock int) *Allocator {
	units := size >> unitShift(size, minBlock)
	links := make([]uint32, 2*units)
	return newAllocator(size, minBlock, links, make([]uint8, units))
}

// TableSize returns how many bytes [NewIn] needs for its book-keeping.
func TableSize(size, minBlock int) int {
	return bytesPerUnit * (size >> unitShift(size, minBlock))
}

// NewIn is New with the book-keeping in table, TableSize bytes of zeroes that
// begin at a multiple of four. The caller leaves it alone, and mapped, for as
// long as it uses the allocator. Of a table that is fresh pages the allocator
// touches few until blocks are allocated all over the region.
func NewIn(table []byte, size, minBlock int) *Allocator {
	units := size >> unitShift(size, minBlock)
	links, state := split(table[:bytesPerUnit*units], units)
	return newAllocator(size, minBlock, links, state)
}

// bytesPerUnit is the book-keeping of a unit: two links and a state.
const bytesPerUnit = 4 + 4 + 1

// unitShift returns log2 of minBlock, or panics as New does.
func unitShift(size, minBlock int) uint {
	if minBlock <= 0 || minBlock&(minBlock-1) != 0 || size <= 0 || size&(minBlock-1) != 0 {
		panic(fmt.Sprintf("buddy: region of %d bytes in blocks of %d", size, minBlock))
	}
	shift := uint(bits.TrailingZeros(uint(minBlock)))
	if units := size >> shift; units > maximumUnits {
		panic(fmt.Sprintf("buddy: %d blocks are more than %d", units, maximumUnits))
	}
	return shift
}

// newAllocator makes an allocator of zeroed tables: two links and a state for
// each unit.
func newAllocator(size, minBlock int, links []uint32, state []uint8) *Allocator {
	units := len(state)
	top := uint(bits.Len(uint(units)) - 1)
	a := &Allocator{
		shift: unitShift(size, minBlock),
		top:   top,
		heads: make([]uint32, top+1),
		next:  links[:units:units],
		prev:  links[units:],
		state: state,
	}
	for unit := 0; unit < units; {
		order := uint(bits.Len(uint(units-unit)) - 1)
		a.push(uint32(unit), order)
		unit += 1 << order
	}
	a.available = size
	return a
}

// Alloc reserves a block of at least n bytes, n > 0, and returns its offset,
// which is a multiple of the block's size. It returns false if no free block is
// large enough. The block's size is n rounded up to a power of two, and not
// less than the smallest block.
func (a *Allocator) Alloc(n int) (off int, ok bool) {
	if n <= 0 || n > 1<<(a.top+a.shift) {
		return 0, false
	}
	order := uint(bits.Len(uint((n - 1) >> a.shift)))
	usable := a.orders >> order
	if usable == 0 {
		return 0, false
	}
	have := order + uint(bits.TrailingZeros64(usable))
	unit := a.heads[have] - 1
	a.remove(unit, have)
	for have > order {
		have--
		a.push(unit+1<<have, have)
	}
	a.state[unit] = isUsed | uint8(order)
	a.available -= 1 << (order + a.shift)
	return int(unit) << a.shift, true
}

// Free gives the block at off back. Freeing what is not allocated breaks an
// invariant of the program and panics.
func (a *Allocator) Free(off int) {
	unit, order := a.used(off)
	a.available += 1 << (order + a.shift)
	for a.state[unit] = 0; order < a.top; order++ {
		neighbour := unit ^ 1<<order
		if int(neighbour) >= len(a.state) || a.state[neighbour] != isFree|uint8(order) {
			break
		}
		a.remove(neighbour, order)
		unit &^= 1 << order
	}
	a.push(unit, order)
}

// Size returns the bytes of the allocated block at off. It panics as Free does.
func (a *Allocator) Size(off int) int {
	_, order := a.used(off)
	return 1 << (order + a.shift)
}

// Allocated returns the bytes of the allocated block at off, or false if none
// begins there.
func (a *Allocator) Allocated(off int) (size int, ok bool) {
	if off < 0 || off>>a.shift >= len(a.state) || off&(1<<a.shift-1) != 0 {
		return 0, false
	}
	state := a.state[off>>a.shift]
	if state&isUsed == 0 {
		return 0, false
	}
	return 1 << (uint(state&orderOf) + a.shift), true
}

// Available returns the bytes that are free, in one block or in many.
func (a *Allocator) Available() int { return a.available }

// used returns the unit and the order of the allocated block at off.
func (a *Allocator) used(off int) (unit uint32, order uint) {
	if _, ok := a.Allocated(off); !ok {
		panic(fmt.Sprintf("buddy: no block is allocated at offset %d", off))
	}
	unit = uint32(off >> a.shift)
	return unit, uint(a.state[unit] & orderOf)
}

// push lists a free block as the newest of its order.
func (a *Allocator) push(unit uint32, order uint) {
	head := a.heads[order]
	a.next[unit], a.prev[unit] = head, 0
	if head != 0 {
		a.prev[head-1] = unit + 1
	}
	a.heads[order] = unit + 1
	a.orders |= 1 << order
	a.state[unit] = isFree | uint8(order)
}

// remove takes a free block off its list.
func (a *Allocator) remove(unit uint32, order uint) {
	next, prev := a.next[unit], a.prev[unit]
	if next != 0 {
		a.prev[next-1] = prev
	}
	if prev != 0 {
		a.next[prev-1] = next
	} else {
		a.heads[order] = next
		if next == 0 {
			a.orders &^= 1 << order
		}
	}
	a.state[unit] = 0
}
