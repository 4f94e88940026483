package roce

import (
	"sync/atomic"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// posts is an SPSC ring of works from the consumer to the owner of the shard:
//
//  1. PostSend and PostRecv push a work, whose segments stay the consumer's
//     memory, unchanged until the work completes
//  2. Doorbell lists the link at its shard, and runs a pass unless another
//     goroutine does (shard.go)
//  3. the pass pops the works, in handOverPosts, and gives each an entry
//  4. the queue pair refers to the entry until the work completes
//  5. releaseEntry frees the entry when the consumer polls the completion
type posts struct {
	ring []*via.Work
	tail atomic.Uint32 // written by the consumer; publishes the entries before it
	head atomic.Uint32 // written by the shard's owner; frees the entries before it
}

func (p *posts) init(size int) { p.ring = make([]*via.Work, size) }

// push appends a work. It returns false if the ring is full.
func (p *posts) push(w *via.Work) bool {
	tail := p.tail.Load()
	if tail-p.head.Load() == uint32(len(p.ring)) {
		return false
	}
	p.ring[tail&uint32(len(p.ring)-1)] = w
	p.tail.Store(tail + 1)
	return true
}

// pop removes and returns the oldest work, or nil.
func (p *posts) pop() *via.Work {
	head := p.head.Load()
	if head == p.tail.Load() {
		return nil
	}
	entry := &p.ring[head&uint32(len(p.ring)-1)]
	w := *entry
	*entry = nil
	p.head.Store(head + 1)
	return w
}

// entries is a free list of a link's records of works posted to the queue pair.
// It grows in blocks that never move, up to the most works in flight, and
// reuses the most recently freed entry first: an idle link costs little,
// however deep its queues are.
type entries[T any] struct {
	blocks [][]T
	free   []uint32
}

// blockEntries is the number of entries of a block.
const blockEntries = 16

// acquire returns a free entry and its number.
func (s *entries[T]) acquire() (uint32, *T) {
	if len(s.free) == 0 {
		first := uint32(len(s.blocks) * blockEntries)
		s.blocks = append(s.blocks, make([]T, blockEntries))
		if all := len(s.blocks) * blockEntries; cap(s.free) < all {
			s.free = make([]uint32, 0, all) // capacity to free all entries
		}
		for i := range uint32(blockEntries) {
			s.free = append(s.free, first+blockEntries-1-i)
		}
	}
	last := len(s.free) - 1
	n := s.free[last]
	s.free = s.free[:last]
	return n, s.at(n)
}

// at returns the entry with a number.
func (s *entries[T]) at(n uint32) *T { return &s.blocks[n/blockEntries][n%blockEntries] }

// release frees an entry.
func (s *entries[T]) release(n uint32) { s.free = append(s.free, n) }

// sendEntry is a work of the send queue that the queue pair has.
type sendEntry struct {
	rc.Work
	work    *via.Work
	checked uint64 // version of the regions at the last successful check, see Local
	fault   faultState
}

// receiveEntry is a receive that the queue pair has. Others stay in the ring
// until the queue pair may need them.
type receiveEntry struct {
	rc.Receive
	work    *via.Work
	checked uint64
}

// receivesAhead is how many posted receives are handed to the queue pair in
// advance.
const receivesAhead = 16

// powerOfTwo rounds up.
func powerOfTwo(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

// The ID of a work is twice the number of its entry; a receive adds 1.
const receiveID = 1

// entryIndex returns the number of the entry of an ID.
func entryIndex(id uint64) uint32 { return uint32(id >> 1) }

// entry returns the work with an ID, and the version of its last segment check.
func (t *transport) entry(id uint64) (*via.Work, *uint64) {
	if id&receiveID != 0 {
		r := t.receives.at(entryIndex(id))
		return r.work, &r.checked
	}
	s := t.sends.at(entryIndex(id))
	return s.work, &s.checked
}

// releaseEntry frees the entry of a completed work and returns the work.
func (t *transport) releaseEntry(id uint64) (w *via.Work) {
	if id&receiveID != 0 {
		r := t.receives.at(entryIndex(id))
		w, r.work = r.work, nil
		clear(r.Segments)
		t.receives.release(entryIndex(id))
		return w
	}
	s := t.sends.at(entryIndex(id))
	w, s.work = s.work, nil
	clear(s.Segments)
	t.sends.release(entryIndex(id))
	return w
}

// PostSend queues a work for the next pass.
func (l *link) PostSend(w *via.Work) bool { return l.sends.push(w) }

// PostRecv queues a receive for the next pass. The ring has room: the VI bounds
// its posts to the depth.
func (l *link) PostRecv(w *via.Work) { l.receives.push(w) }

// Doorbell schedules the link and runs a pass.
func (l *link) Doorbell() {
	l.shard.schedule(l)
	l.shard.run()
}

// handOverPosts hands posts to the queue pair: all works, and as many receives
// as packets may consume before the next call: one for the next packet, and one
// for each packet that the queue pair stashes behind a gap.
func (t *transport) handOverPosts() {
	if t.stage != live {
		return
	}
	for most := max(receivesAhead, 1+t.qp.Stashed()); t.qp.Receives() < most; {
		w := t.link.receives.pop()
		if w == nil {
			break
		}
		t.postReceive(w)
	}
	for w := t.link.sends.pop(); w != nil; w = t.link.sends.pop() {
		t.postSend(w)
	}
}

// postReceive hands a receive to the queue pair, which is as deep as the ring.
func (t *transport) postReceive(w *via.Work) {
	n, r := t.receives.acquire()
	r.work, r.checked = w, 0
	r.ID = uint64(n)<<1 | receiveID
	r.Segments = segments(r.Segments[:0], w)
	t.qp.PostReceive(&r.Receive)
}

// opOf translates opcodes.
var opOf = [...]rc.Op{via.OpSend: rc.Send, via.OpRdmaWrite: rc.Write, via.OpRdmaRead: rc.Read}

// postSend hands a Send or RDMA operation to the queue pair.
func (t *transport) postSend(w *via.Work) {
	n, s := t.sends.acquire()
	s.work, s.checked, s.fault = w, 0, faultState{}
	s.ID, s.Op = uint64(n)<<1, opOf[w.Op]
	s.HasImmediate, s.Immediate = w.HasImmediate, w.Immediate
	s.Key, s.Addr = w.RemoteHandle, w.RemoteAddr
	s.Segments = segments(s.Segments[:0], w)
	t.qp.Post(&s.Work)
}

// segments appends the memory of a work's segments.
func segments(b [][]byte, w *via.Work) [][]byte {
	for i := range w.Segments {
		b = append(b, w.Segments[i].Bytes)
	}
	return b
}
