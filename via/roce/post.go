package roce

import (
	"sync/atomic"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// posts are works on their way from the consumer to who has the turn of the lane:
// a ring with one writer and, at a time, one reader.
type posts struct {
	ring []*via.Work
	tail atomic.Uint32 // the consumer's; it publishes the slots before it
	head atomic.Uint32 // of who has the turn; it gives back the slots before it
}

func (p *posts) init(size int) { p.ring = make([]*via.Work, size) }

// push appends a work. It returns false if there is no room.
func (p *posts) push(w *via.Work) bool {
	tail := p.tail.Load()
	if tail-p.head.Load() == uint32(len(p.ring)) {
		return false
	}
	p.ring[tail&uint32(len(p.ring)-1)] = w
	p.tail.Store(tail + 1)
	return true
}

// pop takes the oldest work, or nil.
func (p *posts) pop() *via.Work {
	head := p.head.Load()
	if head == p.tail.Load() {
		return nil
	}
	slot := &p.ring[head&uint32(len(p.ring)-1)]
	w := *slot
	*slot = nil
	p.head.Store(head + 1)
	return w
}

// slots keep what a link knows of the works that its queue pair has. There are as
// many as there were works at once, in blocks that never move, and the one that
// was given back last is taken first: a link that is hardly used costs little,
// however deep its queues are.
type slots[T any] struct {
	blocks [][]T
	free   []uint32
}

// blockSlots is how many slots are made at a time.
const blockSlots = 16

// take returns a free slot and its number.
func (s *slots[T]) take() (uint32, *T) {
	if len(s.free) == 0 {
		first := uint32(len(s.blocks) * blockSlots)
		s.blocks = append(s.blocks, make([]T, blockSlots))
		if all := len(s.blocks) * blockSlots; cap(s.free) < all {
			s.free = make([]uint32, 0, all) // room for when all are given back
		}
		for i := range uint32(blockSlots) {
			s.free = append(s.free, first+blockSlots-1-i)
		}
	}
	last := len(s.free) - 1
	n := s.free[last]
	s.free = s.free[:last]
	return n, s.at(n)
}

// at returns the slot with a number.
func (s *slots[T]) at(n uint32) *T { return &s.blocks[n/blockSlots][n%blockSlots] }

// give gives a slot back.
func (s *slots[T]) give(n uint32) { s.free = append(s.free, n) }

// sends are the works of the send queue: first posts, then the queue pair's.
type sends struct {
	posts
	slots slots[sendSlot]
}

type sendSlot struct {
	rc.Work
	work    *via.Work
	checked uint64 // version of the regions under which its segments were allowed
	struck  struck
}

// receives are the same of the receive queue. The queue pair gets them when it may
// need them: until then a receive is no more than a place in the ring.
type receives struct {
	posts
	slots slots[receiveSlot]
}

type receiveSlot struct {
	rc.Receive
	work    *via.Work
	checked uint64
}

// receivesAhead is how many receives the queue pair has, if as many are posted.
const receivesAhead = 16

// powerOfTwo rounds up.
func powerOfTwo(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

// The ID of a work is the number of its slot, twice; of a receive, one more.
const receiveID = 1

// slotOf returns the number of the slot of an ID.
func slotOf(id uint64) uint32 { return uint32(id >> 1) }

// slot returns the work with an ID, and where is noted that its segments were
// found allowed.
func (l *link) slot(id uint64) (*via.Work, *uint64) {
	if id&receiveID != 0 {
		r := l.receives.slots.at(slotOf(id))
		return r.work, &r.checked
	}
	s := l.sends.slots.at(slotOf(id))
	return s.work, &s.checked
}

// release takes a work that the queue pair has ended out of its slot.
func (l *link) release(id uint64) (w *via.Work) {
	if id&receiveID != 0 {
		r := l.receives.slots.at(slotOf(id))
		w, r.work = r.work, nil
		clear(r.Segments)
		l.receives.slots.give(slotOf(id))
		return w
	}
	s := l.sends.slots.at(slotOf(id))
	w, s.work = s.work, nil
	clear(s.Segments)
	l.sends.slots.give(slotOf(id))
	return w
}

// PostSend leaves a work for the next turn.
func (l *link) PostSend(w *via.Work) bool { return l.sends.push(w) }

// PostRecv leaves a receive for the next turn. There is room: no more are out
// than the VI's depth.
func (l *link) PostRecv(w *via.Work) { l.receives.push(w) }

// Doorbell sends what was posted.
func (l *link) Doorbell() {
	l.lane.announce(l)
	l.lane.serve()
}

// takePosts hands what was posted to the queue pair: all works, and as many
// receives as may be met before this is called again. That is one for the next
// packet, and one for each that the queue pair keeps behind a gap.
func (l *link) takePosts() {
	if !l.live {
		return
	}
	for most := max(receivesAhead, 1+l.qp.Kept()); l.qp.Receives() < most; {
		w := l.receives.pop()
		if w == nil {
			break
		}
		l.postReceive(w)
	}
	for w := l.sends.pop(); w != nil; w = l.sends.pop() {
		l.postSend(w)
	}
}

// postReceive hands a receive to the queue pair, which has room: its works are
// those of the ring.
func (l *link) postReceive(w *via.Work) {
	n, s := l.receives.slots.take()
	s.work, s.checked = w, 0
	s.ID = uint64(n)<<1 | receiveID
	s.Segments = segments(s.Segments[:0], w)
	l.qp.PostReceive(&s.Receive)
}

// opOf translates opcodes.
var opOf = [...]rc.Op{via.OpSend: rc.Send, via.OpRdmaWrite: rc.Write, via.OpRdmaRead: rc.Read}

// postSend does the same with a Send or RDMA operation.
func (l *link) postSend(w *via.Work) {
	n, s := l.sends.slots.take()
	s.work, s.checked, s.struck = w, 0, struck{}
	s.ID, s.Op = uint64(n)<<1, opOf[w.Op]
	s.HasImmediate, s.Immediate = w.HasImmediate, w.Immediate
	s.Key, s.Addr = w.RemoteHandle, w.RemoteAddr
	s.Segments = segments(s.Segments[:0], w)
	l.qp.Post(&s.Work)
}

// segments appends the memory of a work's segments.
func segments(b [][]byte, w *via.Work) [][]byte {
	for i := range w.Segments {
		b = append(b, w.Segments[i].Bytes)
	}
	return b
}
