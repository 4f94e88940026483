// Package ring is the FIFO of initiator, target, internal/block and via/shm: a
// queue in a power of two of entries. The ring owns the entries until Pop
// returns them.
//
// A Ring has one owner: it is not safe for concurrent use. It never grows on
// Push; callers size it by what they can queue, or call Grow. The methods are
// small enough to be inlined, and none but New and Grow allocates.
package ring

// Ring is a FIFO. The zero Ring has no room.
type Ring[T any] struct {
	entries    []T    // a power of two, or none
	head, tail uint32 // counters that wrap: oldest entry, and first free one
}

// New makes a ring with room for at least n entries.
func New[T any](n int) Ring[T] { return Ring[T]{entries: make([]T, Size(n))} }

// Size rounds n up to a power of two, at least 1.
func Size(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

// Len returns how many entries are queued.
func (r *Ring[T]) Len() int { return int(r.tail - r.head) }

// Cap returns how many entries there is room for.
func (r *Ring[T]) Cap() int { return len(r.entries) }

// Popped returns how many entries were removed since New or Grow, modulo 2³²:
// the sequence number of the oldest entry.
func (r *Ring[T]) Popped() uint32 { return r.head }

// Empty reports whether no entry is queued.
func (r *Ring[T]) Empty() bool { return r.head == r.tail }

// Full reports whether Push has no room.
func (r *Ring[T]) Full() bool { return int(r.tail-r.head) == len(r.entries) }

// Push adds x. The caller knows that there is room: a full ring would lose its
// oldest entry.
func (r *Ring[T]) Push(x T) {
	r.entries[r.tail&uint32(len(r.entries)-1)] = x
	r.tail++
}

// At returns entry i, counted from the oldest, which is 0.
func (r *Ring[T]) At(i int) *T {
	return &r.entries[(r.head+uint32(i))&uint32(len(r.entries)-1)]
}

// First returns the oldest entry. Of an empty ring it is the place of the next
// one: a zero value, if Pop and PopInto removed the last that was there.
func (r *Ring[T]) First() *T { return &r.entries[r.head&uint32(len(r.entries)-1)] }

// Pop removes the oldest entry and returns it. The ring must not be empty, and
// does not refer to the entry any more.
func (r *Ring[T]) Pop() T {
	var zero T
	entry := &r.entries[r.head&uint32(len(r.entries)-1)]
	x := *entry
	*entry = zero
	r.head++
	return x
}

// PopInto moves the oldest entries to dst and returns how many.
func (r *Ring[T]) PopInto(dst []T) int {
	n := min(len(dst), r.Len())
	for i := range n {
		dst[i] = r.Pop()
	}
	return n
}

// Grow makes room for at least n entries; those queued keep their order.
func (r *Ring[T]) Grow(n int) {
	if n <= len(r.entries) {
		return
	}
	grown := New[T](n)
	grown.tail = uint32(r.PopInto(grown.entries))
	*r = grown
}

// Clear removes every entry.
func (r *Ring[T]) Clear() {
	clear(r.entries)
	r.head = r.tail
}
