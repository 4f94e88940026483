package backend

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// room knows which chunks of a file have all of their blocks. A write into a
// hole takes blocks that may be gone when the page cache is written back: the
// write is acknowledged by then, and a flush says that data is lost. So a
// write to a chunk that may have a hole allocates the chunk first, and
// ENOSPC is the answer of that write.
//
// A chunk that is known costs three loads. All chunks are unknown when the file
// is opened, and after a hole was punched into them.
//
// A punch and an allocation of the same chunk may run at the same time, because
// ranges are held in smaller units. The one that punches forgets the chunk
// after the punch and before it releases its range, and voids the claims on
// the chunk whose allocation has begun. In between the chunk may be known: a
// write into the hole waits for the range, and other blocks of the chunk are
// there.
type room struct {
	none atomic.Bool // the file system cannot allocate: every chunk counts as known

	// size is that of the file, in bytes, for which the last chunk is known.
	// Stores hold mu.
	size atomic.Int64

	top atomic.Pointer[[]atomic.Pointer[leaf]]

	mu sync.Mutex // held to change the map
	// +checklocks:mu
	claims []claim
}

const (
	// chunkShift is log2 of the bytes of a chunk. See docs/decisions/0014.
	chunkShift = 18

	leafChunks = 1 << 15 // a leaf is a page
	maxLeaves  = 1 << 20 // for files of 8 PiB; chunks behind are never known
)

// leaf is a part of the map, a bit for each chunk.
type leaf [leafChunks / 64]atomic.Uint64

// claim is an allocation that runs.
type claim struct {
	first, last int64 // chunks
	used, void  bool
}

// chunksOf returns the chunks of n > 0 bytes at off.
func chunksOf(off, n int64) (first, last int64) {
	return off >> chunkShift, (off + n - 1) >> chunkShift
}

// wordMask returns the bits of the chunks from first to last in a word of the
// map.
func wordMask(word, first, last int64) uint64 {
	low, high := max(first-word*64, 0), min(last-word*64, 63)
	return ^uint64(0) << uint(low) & (^uint64(0) >> uint(63-high))
}

// knows reports whether n > 0 bytes at off have their blocks. The caller holds
// the range.
func (r *room) knows(off, n int64) bool {
	if r.none.Load() {
		return true
	}
	first, last := chunksOf(off, n)
	for w := first / 64; w <= last/64; w++ {
		mask := wordMask(w, first, last)
		if r.word(w)&mask != mask {
			return false
		}
	}
	return true
}

// word returns a word of the map.
func (r *room) word(w int64) uint64 {
	const words = leafChunks / 64
	top := r.top.Load()
	if top == nil || w/words >= int64(len(*top)) {
		return 0
	}
	l := (*top)[w/words].Load()
	if l == nil {
		return 0
	}
	return l[w%words].Load()
}

// unknown returns the first and the last unknown chunk of those from first to
// last; first > last if there is none.
func (r *room) unknown(first, last int64) (int64, int64) {
	known := func(chunk int64) bool { return r.word(chunk/64)>>uint(chunk%64)&1 != 0 }
	for first <= last && known(first) {
		first++
	}
	for first <= last && known(last) {
		last--
	}
	return first, last
}

// begin claims chunks that the caller is about to allocate, of a file of size
// bytes, and returns the number of the claim.
func (r *room) begin(first, last, size int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := claim{first: first, last: last, used: true, void: size != r.size.Load()}
	for i := range r.claims {
		if !r.claims[i].used {
			r.claims[i] = c
			return i
		}
	}
	r.claims = append(r.claims, c)
	return len(r.claims) - 1
}

// end ends a claim. The chunks are known if they were allocated and the claim
// was not voided meanwhile.
func (r *room) end(number int, allocated bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.claims[number]
	r.claims[number] = claim{}
	if allocated && !c.void {
		r.learnLocked(c.first, c.last)
	}
}

// learnLocked marks chunks as known.
//
// +checklocks:r.mu
func (r *room) learnLocked(first, last int64) {
	const words = leafChunks / 64
	last = min(last, maxLeaves*leafChunks-1)
	if first > last {
		return
	}
	top := r.growLocked(last/leafChunks + 1)
	for w := first / 64; w <= last/64; w++ {
		l := top[w/words].Load()
		if l == nil {
			l = new(leaf)
			top[w/words].Store(l)
		}
		l[w%words].Or(wordMask(w, first, last))
	}
}

// growLocked returns the map's top with n leaves at least.
//
// +checklocks:r.mu
func (r *room) growLocked(n int64) []atomic.Pointer[leaf] {
	var old []atomic.Pointer[leaf]
	if top := r.top.Load(); top != nil {
		old = *top
	}
	if n <= int64(len(old)) {
		return old
	}
	top := make([]atomic.Pointer[leaf], max(n, int64(2*len(old))))
	for i := range old {
		top[i].Store(old[i].Load())
	}
	r.top.Store(&top)
	return top
}

// forget makes the chunks of n > 0 bytes at off unknown. The caller holds the
// range, and has punched it.
func (r *room) forget(off, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, last := chunksOf(off, n)
	r.forgetLocked(first, last)
}

// forgetLocked makes chunks unknown and voids the claims on them.
//
// +checklocks:r.mu
func (r *room) forgetLocked(first, last int64) {
	const words = leafChunks / 64
	for i := range r.claims {
		if c := &r.claims[i]; c.used && c.first <= last && first <= c.last {
			c.void = true
		}
	}
	top := r.top.Load()
	if top == nil {
		return
	}
	last = min(last, int64(len(*top))*leafChunks-1)
	for w := first / 64; w <= last/64; w++ {
		l := (*top)[w/words].Load()
		if l == nil {
			w |= words - 1 // to the next leaf
			continue
		}
		l[w%words].And(^wordMask(w, first, last))
	}
}

// resized notes the file's size, in bytes: the last chunk is known up to there.
func (r *room) resized(size int64) {
	if r.size.Load() == size {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(min(size, r.size.Load())>>chunkShift, maxLeaves*leafChunks)
	r.size.Store(size)
}

// reserve has the file system allocate what a write of length bytes at off
// needs. It may block. ENOSPC and EDQUOT are the answer to the write; after
// any other failure the write finds out itself.
//
// Direct I/O has its blocks when it returns. But ENOSPC of a durable write may
// come from making durable, and then other data is lost.
func (f *file) reserve(off, length int64, durable bool) error {
	if f.room == nil || f.align > 1 && !durable || f.room.knows(off, length) {
		return nil
	}
	size, err := f.kernel.size(f.fd)
	if err != nil {
		return err
	}
	first, last := f.room.unknown(chunksOf(off, length))
	begin, end := first<<chunkShift, min((last+1)<<chunkShift, size)
	if begin >= end {
		return nil
	}
	number := f.room.begin(first, last, size)
	err = f.allocate(unix.FALLOC_FL_KEEP_SIZE, begin, end-begin)
	f.room.end(number, err == nil)
	if noRoom(err) {
		// There may be enough for this write, if not for its chunks.
		err = f.allocate(unix.FALLOC_FL_KEEP_SIZE, off, length)
	}
	switch {
	case noRoom(err):
		return err
	case unsupported(err):
		f.room.none.Store(true)
	}
	return nil
}

// ready reports whether a write to the page cache can begin at once: it is
// within the file, and has its blocks.
func (f *file) ready(off, length int64) bool {
	return f.within(off, length, unix.ENOSPC) == nil && (f.room == nil || f.room.knows(off, length))
}

// noRoom reports whether the file system, or a quota, has no blocks left.
func noRoom(err error) bool { return err == unix.ENOSPC || err == unix.EDQUOT }
