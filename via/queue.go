package via

// post is the place of one descriptor in a work queue: what the consumer posted
// and, once it is complete, what became of it. Eight of them are three cache
// lines.
type post struct {
	desc      *Descriptor
	status    Status
	length    uint32
	immediate uint32
}

// linkDepth is how many Sends and RDMA operations of a queue a link holds at
// most; the rest spill. It bounds the memory of a queue: a spilled post takes
// 24 bytes, a work at the link 128.
const linkDepth = 128

// maxDepth bounds a queue's depth, so that 16 bits tell its works apart.
const maxDepth = 1 << 16

// workQueue is the send or receive queue of a VI.
//
//	taken ≤ head ≤ next ≤ tail
//	[taken, head)  complete, not dequeued
//	[head, next)   the link's: works in flight
//	[next, tail)   the spill: waits for the link, a fence, or an error ahead
//
// It is MyVIA's pair of a small ring at the NIC and a big ring in the host:
// posts go to the big ring, and are translated into the small one at once if
// nothing waits, else when the small one has run down to its low-water mark.
// Receives never spill: the link must have those that a message may meet.
type workQueue struct {
	// The fields that completing a work needs fill one cache line.
	posts []post // ring

	taken, head, next, tail uint32

	vi      *VI
	cq      *CQ    // the VI's if private is set
	lost    uint32 // complete, but the completion queue had no room to say so
	recv    bool
	private bool // work queue model: no completion queue announces its completions
	fenced  bool // the post at next waits for the reads before it

	works  []Work  // ring
	region *Memory // that the last segment was in
	depth  uint32  // descriptors it takes
	width  uint32  // works the link holds at most
	low    uint32  // width at which waiting posts are handed on
	reads  int     // RDMA Reads in [head, next)

	spilled       uint64         // posts that waited
	refills       uint64         // times posts that waited were handed on
	notifications []notification // of a private queue
	_             [32]byte
}

func newWorkQueue(vi *VI, cq *CQ, depth int, recv bool) workQueue {
	width := depth
	if !recv {
		width = min(depth, linkDepth)
	}
	q := workQueue{
		vi: vi, cq: cq, recv: recv, private: cq.private, depth: uint32(depth), width: uint32(width), low: uint32(width) / 4,
		posts: make([]post, powerOfTwo(depth)), works: make([]Work, powerOfTwo(width)),
	}
	return q
}

// adopt gives the works, and the VI's own completion queue, the queue, which
// has its place by now.
func (q *workQueue) adopt() {
	for i := range q.works {
		w := &q.works[i]
		w.queue, w.Segments = q, w.inline[:0]
	}
	if q.private {
		i := 0
		if q.recv {
			i = 1
		}
		q.cq.queues[i] = q
	}
}

// powerOfTwo returns the first power of two that is not less than n.
func powerOfTwo(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

func (q *workQueue) empty() bool         { return q.taken == q.tail }
func (q *workQueue) at(i uint32) *post   { return &q.posts[i&uint32(len(q.posts)-1)] }
func (q *workQueue) work(i uint32) *Work { return &q.works[i&uint32(len(q.works)-1)] }
func (q *workQueue) outstanding() uint32 { return q.next - q.head }

// memory returns the live region of a handle with a tag, or nil.
func (q *workQueue) memory(handle, tag uint32) *Memory {
	m := q.region
	if m == nil || m.handle.Load() != handle || !m.live.Load() {
		if m = q.vi.nic.regions.lookup(handle); m == nil || !m.live.Load() {
			return nil
		}
		q.region = m
	}
	if m.Tag() != tag {
		return nil
	}
	return m
}

// push appends a descriptor. It returns false if the queue is full.
func (q *workQueue) push(d *Descriptor) bool {
	if q.tail-q.taken >= q.depth {
		return false
	}
	q.at(q.tail).desc = d
	q.tail++
	return true
}

// advance hands waiting posts to the link, in order, as far as it goes.
func (q *workQueue) advance() {
	q.fenced = false
	for q.next != q.tail && q.outstanding() < q.width {
		w, d := q.work(q.next), q.at(q.next).desc
		if failed := d.load(w, q); failed != 0 {
			if q.next != q.head {
				return // earlier descriptors complete first
			}
			q.next++
			q.finish(w.Op, failed, 0, 0, nil)
			if !q.vi.tolerates() {
				return
			}
			continue
		}
		if q.reads != 0 && d.fenced() {
			q.fenced = true
			return
		}
		if q.recv {
			q.vi.link.PostRecv(w)
		} else if !q.vi.link.PostSend(w) {
			return
		}
		if w.Op == OpRdmaRead {
			q.reads++
		}
		q.next++
	}
}

// refill hands on what waits once the link has run down to the low-water mark.
// The consumer's doorbell came with its posts, so refill rings again.
func (q *workQueue) refill() {
	if q.next == q.tail || q.vi.link == nil {
		return
	}
	if q.outstanding() > q.low && !(q.fenced && q.reads == 0) {
		return
	}
	before := q.next
	q.advance()
	if q.next != before {
		q.refills++
		q.vi.ring()
	}
}

// completed takes over the result of the work at the head, as finish does.
func (q *workQueue) completed(w *Work, dst []Completion) bool {
	if w.Op == OpRdmaRead {
		q.reads--
	}
	return q.finish(w.Op, w.Status, w.Moved, w.Immediate, dst)
}

// finish completes the descriptor at the head and announces it. It returns
// whether the completion is stored in dst, which may be nil, already.
func (q *workQueue) finish(op Opcode, st Status, length, immediate uint32, dst []Completion) bool {
	p := q.at(q.head)
	q.head++
	if !q.recv || st&StatusOpMask != StatusOpRemoteWrite {
		st |= opStatus[op&3]
	}
	d := p.desc
	live := d.mem.live.Load()
	if live {
		d.complete(st, length, immediate)
	}
	stored := q.cq.deliver(dst, q, p, st|StatusDone, length, immediate)
	if !stored {
		p.status, p.length, p.immediate = st|StatusDone, length, immediate
		if !q.private && !q.cq.push(q) {
			q.lost++
		}
	}
	if c := q.cq; len(c.notifications)+len(c.sleepers) != 0 || q.private && len(q.notifications) != 0 {
		q.cq.deliverNotices()
	}
	if !live {
		// The descriptor's memory is gone: its status cannot be written.
		q.vi.breakLink(AsyncCompletionProt, nil, true)
		q.vi.raise(AsyncError{VI: q.vi, Descriptor: d, Code: AsyncCompletionProt})
	}
	return stored
}

// opStatus is the operation as a completion names it, by opcode.
var opStatus = [4]Status{
	OpSend: StatusOpSend, OpRdmaWrite: StatusOpRdmaWrite, OpRdmaRead: StatusOpRdmaRead, OpRecv: StatusOpReceive,
}

// opOf returns the operation of a descriptor that the link never had.
func (q *workQueue) opOf(d *Descriptor) Opcode {
	if q.recv {
		return OpRecv
	}
	return d.op()
}

// flush completes everything with StatusFlushed; the link is closed or was
// never there.
func (q *workQueue) flush() {
	q.reads, q.fenced = 0, false
	for q.head != q.tail {
		if q.head == q.next {
			q.next++
		}
		q.finish(q.opOf(q.at(q.head).desc), StatusFlushed, 0, 0, nil)
	}
}

// emptied reports whether no complete descriptor waits to be taken.
func (q *workQueue) emptied() bool { return q.taken == q.head }

// pop takes the oldest complete descriptor off the queue; there is one.
func (q *workQueue) pop() *post {
	p := q.at(q.taken)
	q.taken++
	if q.taken == q.head {
		q.lost = 0
	}
	return p
}
