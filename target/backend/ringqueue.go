package backend

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// ring is the part of a [uring.Ring] that a queue uses.
type ring interface {
	Read(p []byte, off int64, user uint64) bool
	Write(p []byte, off int64, durable bool, user uint64) bool
	Submit() error
	Withdraw() (user uint64, ok bool)
	Ready() bool
	Next() (user uint64, result int, ok bool)
	Wait() error
	FD() int
	Close() error
}

// ringQueue is a queue of a file whose reads and writes the kernel executes,
// where it can without a thread that waits: by direct I/O, and reads of data
// outside the page cache. The queue inside hands everything else to the
// executor.
//
// A request travels
//
//	1 Submit    the owner tries the page cache; other requests get their range
//	            and a place in the ring, or go to the queue inside
//	2 Kick      one system call hands over what is in the ring
//	3 Reap      the owner takes results, frees ranges, and posts the rest of
//	            partial ones
//
// The ring is made for the first request that needs it, and closed with Shed: a
// queue that is idle has none. The executor executes requests that a ring
// refuses or returns undone.
type ringQueue struct {
	block.Queue // of the executor
	file        *file
	poll        int // epoll: the ring, and the queue inside

	ring     ring
	refused  bool // the kernel refused a ring; not tried again until Shed
	places   []place
	free     []uint16
	unkicked bool // the ring has entries that are not submitted
	done     []*block.Request
	held     int // requests submitted and not reaped
	depth    int
	closed   bool
}

// longestInRing is the longest request of a ring, in bytes. The owner maps the
// pages of a longer one for as long as another processor would have done so
// meanwhile. Time of an operation by threads over that in a ring, direct I/O on
// ext4 at depth 32, two processors:
//
//	        4 KiB  16 KiB  64 KiB  128 KiB  256 KiB  1 MiB
//	read    2.3    1.4     1.0     1.0      1.2      1.0
//	write   3.5    2.8     1.9     1.2      1.1      0.95
const longestInRing = 256 << 10

// place is a request in the ring. It keeps the memory alive that the kernel
// moves.
type place struct {
	r    *block.Request
	rest []byte // not done yet
}

// newRingQueue returns a queue around one of the file's executor, which it
// takes.
func newRingQueue(f *file, inner block.Queue, depth int) (*ringQueue, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open queue of %q: make an epoll: %w", f.path, err)
	}
	q := &ringQueue{Queue: inner, file: f, poll: poll, depth: depth, done: make([]*block.Request, 0, depth)}
	if err := q.watch(inner.FD()); err != nil {
		_ = unix.Close(poll)
		return nil, fmt.Errorf("open queue of %q: %w", f.path, err)
	}
	return q, nil
}

// watch has the queue's descriptor be readable when fd is.
func (q *ringQueue) watch(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(q.poll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("add to an epoll: %w", err)
	}
	return nil
}

// Submit implements [block.Queue].
func (q *ringQueue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	if q.refused || !q.suits(r) {
		q.passOn(r)
		return true
	}
	r.Token, r.Err = 0, nil
	if q.file.Attempt(r) {
		q.done = append(q.done, r)
	} else if !q.obtain() || !q.put(r) {
		q.passOn(r)
	}
	return true
}

// passOn hands a request to the queue inside, which is as deep as this one.
func (q *ringQueue) passOn(r *block.Request) {
	if !q.Queue.Submit(r) {
		r.Err = unix.EIO
		q.done = append(q.done, r)
	}
}

// suits reports whether the kernel executes a request without a thread of its
// own that waits, as far as that can be known. It does not for writes to the
// page cache and for what is made durable, and copies from the page cache while
// Submit waits.
func (q *ringQueue) suits(r *block.Request) bool {
	f := q.file
	switch r.Op {
	case block.Read:
	case block.Write:
		if f.align == 1 || r.Flags&block.FUA != 0 {
			return false
		}
	default:
		return false
	}
	return r.Length <= longestInRing && !f.misaligned(r.Data) && f.holds(r)
}

// obtain makes the ring if there is none.
func (q *ringQueue) obtain() bool {
	if q.ring != nil {
		return true
	}
	ring, err := q.file.openRing(q.file.fd, q.depth)
	if err == nil {
		if err = q.watch(ring.FD()); err != nil {
			_ = ring.Close() // it has nothing in flight
		}
	}
	if q.refused = err != nil; q.refused {
		return false
	}
	q.ring = ring
	if q.places == nil {
		q.places = make([]place, q.depth)
		q.free = make([]uint16, 0, q.depth)
		for i := range q.depth {
			q.free = append(q.free, uint16(i))
		}
	}
	return true
}

// put puts a request into the ring, with its range held. It reports false if
// the range is taken, or the request cannot be.
func (q *ringQueue) put(r *block.Request) bool {
	f, write := q.file, r.Op == block.Write
	if !f.ranges.TryAcquire(r.Offset, r.Length, write) {
		return false
	}
	if write && f.within(r.Offset, r.Length, unix.ENOSPC) != nil {
		f.ranges.Release(r.Offset, r.Length, write)
		return false // the executor says why
	}
	last := len(q.free) - 1
	at := q.free[last]
	q.places[at] = place{r: r, rest: r.Data[r.Token:]}
	if !q.post(at) {
		q.places[at] = place{}
		f.ranges.Release(r.Offset, r.Length, write)
		return false
	}
	q.free = q.free[:last]
	return true
}

// post puts the rest of a request into the ring.
func (q *ringQueue) post(at uint16) bool {
	p := &q.places[at]
	off := p.r.Offset + p.r.Length - int64(len(p.rest))
	ok := false
	if p.r.Op == block.Read {
		ok = q.ring.Read(p.rest, off, uint64(at))
	} else {
		ok = q.ring.Write(p.rest, off, false, uint64(at))
	}
	q.unkicked = q.unkicked || ok
	return ok
}

// Kick implements [block.Queue].
func (q *ringQueue) Kick() {
	q.kick()
	q.Queue.Kick()
}

// kick hands over what is in the ring. Requests that the kernel refuses,
// because it is out of memory, go to the queue inside.
func (q *ringQueue) kick() {
	if !q.unkicked {
		return
	}
	q.unkicked = false
	if q.ring.Submit() == nil {
		return
	}
	for {
		at, ok := q.ring.Withdraw()
		if !ok {
			return
		}
		q.passOn(q.remove(uint16(at)))
	}
}

// remove removes a request from the ring, and releases its range.
func (q *ringQueue) remove(at uint16) *block.Request {
	r := q.places[at].r
	q.places[at] = place{}
	q.free = append(q.free, at)
	q.file.ranges.Release(r.Offset, r.Length, r.Op == block.Write)
	return r
}

// Reap implements [block.Queue].
func (q *ringQueue) Reap(dst []*block.Request) int {
	if q.ring != nil {
		q.collect()
	}
	n := copy(dst, q.done)
	q.done = q.done[:copy(q.done, q.done[n:])]
	n += q.Queue.Reap(dst[n:])
	q.held -= n
	return n
}

// collect takes the results that there are.
func (q *ringQueue) collect() {
	again := false
	for {
		at, result, ok := q.ring.Next()
		if !ok {
			break
		}
		again = q.result(uint16(at), result) || again
	}
	if again {
		q.Kick()
	}
}

// result handles what came of a request, and reports whether it needs a Kick.
func (q *ringQueue) result(at uint16, n int) (again bool) {
	p := &q.places[at]
	switch errno := unix.Errno(max(-n, 0)); {
	case n == len(p.rest):
	case n > 0:
		// Its range stays held, so that what overlaps sees all of it or
		// nothing. A part that direct I/O cannot begin at is the kernel's,
		// which wrote only that much.
		p.rest = p.rest[n:]
		if q.post(at) {
			return true
		}
		p.r.Err = q.file.describe(p.r, unix.EIO)
	case errno == unix.EINTR, errno == unix.EAGAIN, errno == unix.ECANCELED, unsupported(errno):
		q.passOn(q.remove(at)) // it is not done: not at all, or for want of something
		return true
	case errno != 0:
		p.r.Err = q.file.describe(p.r, errno)
	case p.r.Op == block.Read:
		end := p.r.Offset + p.r.Length - int64(len(p.rest))
		p.r.Err = q.file.describe(p.r, fmt.Errorf("the file ends at %d: %w", end, unix.EINVAL))
	default:
		p.r.Err = q.file.describe(p.r, unix.EIO)
	}
	q.done = append(q.done, q.remove(at))
	return false
}

// Arm implements [block.Queue].
func (q *ringQueue) Arm() (time.Duration, bool) {
	if len(q.done) > 0 || q.ring != nil && q.ring.Ready() {
		return 0, false
	}
	return q.Queue.Arm()
}

// FD implements [block.Queue].
func (q *ringQueue) FD() int { return q.poll }

// ReleaseIdle implements [block.IdleReleaser].
func (q *ringQueue) ReleaseIdle() {
	if q.held == 0 && q.ring != nil {
		_ = q.ring.Close() // the kernel removes it from the epoll; it has nothing in flight
		q.ring = nil
	}
	q.refused = false
	if s, ok := q.Queue.(block.IdleReleaser); ok {
		s.ReleaseIdle()
	}
}

// Abort implements [block.Queue]. The kernel has begun what Kick submitted.
func (q *ringQueue) Abort() {
	for q.ring != nil && q.unkicked {
		at, ok := q.ring.Withdraw()
		if !ok {
			break
		}
		r := q.remove(uint16(at))
		r.Err = unix.ECANCELED
		q.done = append(q.done, r)
	}
	q.unkicked = false
	q.Queue.Abort()
}

// Close implements [block.Queue]. It waits for what the kernel has.
func (q *ringQueue) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	err := q.drain()
	if e := q.Queue.Close(); err == nil {
		err = e
	}
	if e := unix.Close(q.poll); err == nil {
		err = e
	}
	return err
}

// drain ends what is in the ring, and the ring. If that fails, which it does
// not as long as the kernel keeps to its word, the ring stays: the kernel may
// touch memory.
func (q *ringQueue) drain() error {
	if q.ring == nil {
		return nil
	}
	for {
		at, ok := q.ring.Withdraw()
		if !ok {
			break
		}
		q.remove(uint16(at))
	}
	for len(q.free) < q.depth {
		if err := q.ring.Wait(); err != nil {
			return fmt.Errorf("close queue of %q: %w", q.file.path, err)
		}
		at, _, ok := q.ring.Next()
		if ok {
			q.remove(uint16(at))
		}
	}
	return q.ring.Close()
}
