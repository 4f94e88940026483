package nbd

import (
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// entry is a request with what its reply needs.
type entry struct {
	req     block.Request
	header  header
	payload int64                  // bytes counted in flight
	began   time.Duration          // when its header was there
	given   time.Duration          // to the queue
	waited  bool                   // for memory or the queue
	inQueue bool                   // between Submit and Reap
	why     string                 // text of an error reply, if there is one
	reply   [maximumChunkHead]byte // header of the reply
	heads   []byte                 // headers of a reply in several chunks
	filter  [filterSize]byte       // payload of a BLOCK_STATUS
	status  *statusBuffer          // lent to a BLOCK_STATUS
}

// requestTable are the entries of a connection, as many as its client has
// needed at a time since it was idle, and at most depth. The one freed last is
// taken first.
type requestTable struct {
	depth  int
	made   int
	chunks []*[entriesPerChunk]entry
	free   []*entry // a stack
}

// entriesPerChunk is how many are allocated at a time: 4 to 5 KiB.
const entriesPerChunk = 16

// entryChunks are the chunks that no connection has now, cleared.
var entryChunks = sync.Pool{New: func() any { return new([entriesPerChunk]entry) }}

// available reports whether acquire will return a entry.
func (x *requestTable) available() bool { return len(x.free) > 0 || x.made < x.depth }

// acquire returns a free entry, or nil.
func (x *requestTable) acquire() *entry {
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

// grow makes another chunk of entries, if there may be more.
func (x *requestTable) grow() {
	n := min(entriesPerChunk, x.depth-x.made)
	if n == 0 {
		return
	}
	chunk := entryChunks.Get().(*[entriesPerChunk]entry)
	x.chunks = append(x.chunks, chunk)
	for i := n - 1; i >= 0; i-- {
		chunk[i].req.User = uint64(x.made + i)
		x.free = append(x.free, &chunk[i])
	}
	x.made += n
}

// entryOf returns the entry of a request.
func (x *requestTable) entryOf(r *block.Request) *entry {
	return &x.chunks[r.User/entriesPerChunk][r.User%entriesPerChunk]
}

// release frees a entry.
func (x *requestTable) release(s *entry) { x.free = append(x.free, s) }

// releaseIdle gives the entries back, if none is taken: what is taken may still
// be the device's.
func (x *requestTable) releaseIdle() {
	if len(x.free) == x.made {
		for _, chunk := range x.chunks {
			clear(chunk[:])
			entryChunks.Put(chunk)
		}
	}
	*x = requestTable{depth: x.depth}
}
