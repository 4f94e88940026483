package nbd

import (
	"sync"

	"github.com/viablk/viablk/internal/block"
)

// slot is a request with what its reply needs.
type slot struct {
	req     block.Request
	header  header
	payload int64                  // bytes counted in flight
	why     string                 // text of an error reply, if there is one
	reply   [maximumChunkHead]byte // header of the reply
	heads   []byte                 // headers of a reply in several chunks
	filter  [filterSize]byte       // payload of a BLOCK_STATUS
	status  *status                // lent to a BLOCK_STATUS
}

// slots are the slots of a connection, as many as its client has needed at a time
// since it was idle, and at most depth. The one freed last is taken first.
type slots struct {
	depth  int
	made   int
	chunks []*[slotsPerChunk]slot
	free   []*slot // a stack
}

// slotsPerChunk is how many are allocated at a time: 4 to 5 KiB.
const slotsPerChunk = 16

// slotChunks are the chunks that no connection has now, cleared.
var slotChunks = sync.Pool{New: func() any { return new([slotsPerChunk]slot) }}

// left reports whether take will return a slot.
func (x *slots) left() bool { return len(x.free) > 0 || x.made < x.depth }

// take returns a free slot, or nil.
func (x *slots) take() *slot {
	if len(x.free) == 0 {
		x.grow()
	}
	last := len(x.free) - 1
	if last < 0 {
		return nil
	}
	s := x.free[last]
	x.free = x.free[:last]
	return s
}

// grow makes another chunk of slots, if there may be more.
func (x *slots) grow() {
	n := min(slotsPerChunk, x.depth-x.made)
	if n == 0 {
		return
	}
	chunk := slotChunks.Get().(*[slotsPerChunk]slot)
	x.chunks = append(x.chunks, chunk)
	for i := n - 1; i >= 0; i-- {
		chunk[i].req.User = uint64(x.made + i)
		x.free = append(x.free, &chunk[i])
	}
	x.made += n
}

// of returns the slot of a request.
func (x *slots) of(r *block.Request) *slot {
	return &x.chunks[r.User/slotsPerChunk][r.User%slotsPerChunk]
}

// put frees a slot.
func (x *slots) put(s *slot) { x.free = append(x.free, s) }

// shed gives the slots back, if none is taken: what is taken may still be the
// device's.
func (x *slots) shed() {
	if len(x.free) == x.made {
		for _, chunk := range x.chunks {
			clear(chunk[:])
			slotChunks.Put(chunk)
		}
	}
	*x = slots{depth: x.depth}
}
