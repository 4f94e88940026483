package via

// slot is the place of one posted descriptor in a work queue.
type slot struct {
	work Work
	desc *Descriptor
	vi   *VI
	// failed holds the error bits of a descriptor that failed its checks: it keeps
	// its place, so that descriptors complete in the order of their posts.
	failed Status
	fence  bool
}

// workQueue is the send or receive queue of a VI: a ring of slots.
//
//	head ≤ next ≤ tail
//	[head, next)  handed to the link
//	[next, tail)  waiting: the link has no room, a fence, or an error ahead
type workQueue struct {
	vi    *VI
	cq    *CQ
	recv  bool
	slots []slot
	mask  uint32
	depth uint32 // descriptors it takes; slots are a power of two

	head, next, tail uint32
	reads            int // RDMA Reads in [head, next)
	untaken          int // completions that wait in cq
}

func newWorkQueue(vi *VI, cq *CQ, depth int, recv bool) workQueue {
	size := 1
	for size < depth {
		size <<= 1
	}
	q := workQueue{vi: vi, cq: cq, recv: recv, slots: make([]slot, size), mask: uint32(size - 1), depth: uint32(depth)}
	for i := range q.slots {
		s := &q.slots[i]
		s.vi, s.work.slot = vi, s
		s.work.Segments = s.work.inline[:0]
	}
	return q
}

func (q *workQueue) empty() bool       { return q.head == q.tail }
func (q *workQueue) at(i uint32) *slot { return &q.slots[i&q.mask] }

// push books a descriptor at the tail. It returns nil if the queue is full.
func (q *workQueue) push(d *Descriptor) *slot {
	if q.tail-q.head >= q.depth {
		return nil
	}
	s := q.at(q.tail)
	s.desc, s.fence = d, d.b[offControl]&byte(ControlFence) != 0
	s.failed = d.translate(&s.work, q.vi, q.recv)
	q.tail++
	return s
}

// advance hands waiting slots to the link, in order, as far as it goes.
func (q *workQueue) advance() {
	for q.next != q.tail {
		s := q.at(q.next)
		switch {
		case s.failed != 0:
			if q.next != q.head {
				return // earlier descriptors complete first
			}
			q.next++
			q.vi.localError(q, s)
			return
		case s.fence && q.reads != 0:
			return
		case q.recv:
			q.vi.link.PostRecv(&s.work)
		case !q.vi.link.PostSend(&s.work):
			return
		}
		if s.work.Op == OpRdmaRead {
			q.reads++
		}
		q.next++
	}
}

// finish completes the descriptor at the head.
func (q *workQueue) finish(s *slot, st Status, length, immediate uint32) {
	if s.work.Op == OpRdmaRead && q.reads > 0 {
		q.reads--
	}
	q.head++
	st |= q.opStatus(s, st)
	d := s.desc
	s.desc = nil
	live := d.mem.live.Load()
	if live {
		d.complete(st, length, immediate)
	}
	if q.cq.push(Completion{VI: q.vi, Descriptor: d, Recv: q.recv, Status: st | StatusDone, Length: length, Immediate: immediate}) {
		q.untaken++
	}
	if !live {
		// The descriptor's memory is gone: its status cannot be written.
		q.vi.breakLink(AsyncCompletionProt, nil, true)
		q.vi.nic.raise(AsyncError{VI: q.vi, Descriptor: d, Code: AsyncCompletionProt})
	}
}

// opStatus returns the operation bits of a completion.
func (q *workQueue) opStatus(s *slot, st Status) Status {
	switch {
	case q.recv && st&StatusOpMask == StatusOpRemoteWrite:
		return 0
	case q.recv:
		return StatusOpReceive
	case s.work.Op == OpRdmaWrite:
		return StatusOpRdmaWrite
	case s.work.Op == OpRdmaRead:
		return StatusOpRdmaRead
	default:
		return StatusOpSend
	}
}

// flush completes everything with StatusFlushed; the link is closed or was never
// there.
func (q *workQueue) flush() {
	q.next = q.tail
	q.reads = 0
	for q.head != q.tail {
		q.finish(q.at(q.head), StatusFlushed, 0, 0)
	}
}
