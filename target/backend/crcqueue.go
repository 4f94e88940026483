package backend

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// crcQueue is a queue of a disk with checksums. Whole blocks go to a queue of
// the disk below, with the memory of this one, and everything else to the
// executor, whose queue is inside.
type crcQueue struct {
	block.Queue // of the executor; it has all memory
	device      *crc
	inner       block.Queue
	poll        int // epoll: both queues; -1 if the inner one has no descriptor

	places []crcPlace
	free   []uint16
	reaped []*block.Request // scratch
	done   []*block.Request // refused by the inner queue, or reaped in Submit
	held   int              // requests submitted and not reaped
	depth  int
	closed bool
}

// crcPlace is a request of the inner queue, for one of a caller.
type crcPlace struct {
	block.Request
	caller      *block.Request
	first, last int64 // regions
}

// NewQueue implements [block.Device].
func (c *crc) NewQueue(depth int) (block.Queue, error) {
	slow, err := c.executor.NewQueue(depth, int(c.info.MaximumPayload))
	if err != nil {
		return nil, err
	}
	inner, err := c.inner.NewQueue(depth)
	if err != nil {
		return nil, errors.Join(err, slow.Close())
	}
	q := &crcQueue{
		Queue: slow, device: c, inner: inner, poll: -1, depth: depth,
		places: make([]crcPlace, depth), free: make([]uint16, 0, depth),
		reaped: make([]*block.Request, depth), done: make([]*block.Request, 0, depth),
	}
	for i := range depth {
		q.free = append(q.free, uint16(i))
	}
	if inner.FD() >= 0 {
		if err := q.watch(); err != nil {
			return nil, errors.Join(err, q.Close())
		}
	}
	return q, nil
}

// watch makes a descriptor that is readable when one of the queues' is.
func (q *crcQueue) watch() (err error) {
	if q.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		q.poll = -1
		return fmt.Errorf("open a queue: make an epoll: %w", err)
	}
	for _, fd := range []int{q.inner.FD(), q.Queue.FD()} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(q.poll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return fmt.Errorf("open a queue: add to an epoll: %w", err)
		}
	}
	return nil
}

// FD implements [block.Queue].
func (q *crcQueue) FD() int {
	if q.poll < 0 {
		return q.Queue.FD()
	}
	return q.poll
}

// Submit implements [block.Queue].
func (q *crcQueue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	first, last := regionsOf(r.Offset, r.Length)
	if q.suits(r, first, last) {
		q.pass(r, first, last)
		return true
	}
	if !q.Queue.Submit(r) { // it is as deep as this one
		r.Err = unix.EIO
		q.done = append(q.done, r)
	}
	return true
}

// suits reports whether a request may go to the inner queue. It holds the range
// of one that moves data then, and is a writer of its regions.
func (q *crcQueue) suits(r *block.Request, first, last int64) bool {
	c := q.device
	switch r.Op {
	case block.Status, block.Prefetch:
		return true
	case block.Read:
		return c.passes && c.present(first, last) && q.acquire(r, false)
	case block.Write:
		if !c.passes || r.Flags&block.FUA != 0 || !c.beginWrite(first, last) {
			return false
		}
		if q.acquire(r, true) {
			return true
		}
		c.endWrite(first, last)
	}
	return false
}

// acquire holds the range of a request, if that is possible at once and the
// request consists of whole blocks, which only the holder of the last one of a
// disk that grows can say.
func (q *crcQueue) acquire(r *block.Request, write bool) bool {
	c := q.device
	if !c.ranges.TryAcquire(r.Offset, r.Length, write) {
		return false
	}
	whole := c.whole(r.Offset, r.Length)
	if !whole {
		c.ranges.Release(r.Offset, r.Length, write)
	}
	return whole
}

// pass hands a request to the inner queue.
func (q *crcQueue) pass(r *block.Request, first, last int64) {
	at := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	s := &q.places[at]
	s.caller, s.first, s.last = r, first, last
	s.Request = block.Request{
		Op: r.Op, Flags: r.Flags, Offset: r.Offset, Length: r.Length, Data: r.Data, Extents: r.Extents, User: uint64(at),
	}
	if !q.inner.Submit(&s.Request) { // it is as deep as this one
		s.Err = unix.ECANCELED
		q.done = append(q.done, q.end(at))
		r.Err = unix.EIO
		return
	}
	if r.Op == block.Read {
		n := len(q.done)
		q.done = q.done[:n+q.collect(q.done[n:cap(q.done)])] // while it is in the processor's cache
	}
}

// end ends a request of the inner queue and returns that of its caller.
func (q *crcQueue) end(at uint16) *block.Request {
	c, s := q.device, &q.places[at]
	r := s.caller
	r.Err = s.Err
	switch r.Op {
	case block.Status:
		r.Extents = s.Extents
	case block.Read:
		if r.Err == nil {
			r.Err = c.check(r.Data, r.Offset)
		}
		c.ranges.Release(r.Offset, r.Length, false)
	case block.Write:
		switch {
		case r.Err == nil:
			c.keep(r.Data, r.Offset)
		case block.Errno(r.Err) != unix.ECANCELED: // which had no effect
			c.forget(r.Offset, r.Length)
		}
		c.endWrite(s.first, s.last)
		c.ranges.Release(r.Offset, r.Length, true)
	}
	*s = crcPlace{}
	q.free = append(q.free, at)
	return r
}

// Kick implements [block.Queue].
func (q *crcQueue) Kick() {
	q.inner.Kick()
	q.Queue.Kick()
}

// Reap implements [block.Queue].
func (q *crcQueue) Reap(dst []*block.Request) int {
	n := copy(dst, q.done)
	q.done = q.done[:copy(q.done, q.done[n:])]
	n += q.collect(dst[n:])
	n += q.Queue.Reap(dst[n:])
	q.held -= n
	return n
}

// collect reaps the inner queue.
func (q *crcQueue) collect(dst []*block.Request) int {
	n := q.inner.Reap(q.reaped[:min(len(dst), len(q.reaped))])
	for i, r := range q.reaped[:n] {
		dst[i] = q.end(uint16(r.User))
	}
	return n
}

// Arm implements [block.Queue].
func (q *crcQueue) Arm() (time.Duration, bool) {
	if len(q.done) > 0 {
		return 0, false
	}
	d, ok := q.inner.Arm()
	if !ok {
		return 0, false
	}
	slow, ok := q.Queue.Arm()
	if d < 0 || slow >= 0 && slow < d {
		d = slow
	}
	return d, ok
}

// ReleaseIdle implements [block.IdleReleaser].
func (q *crcQueue) ReleaseIdle() {
	for _, queue := range []block.Queue{q.inner, q.Queue} {
		if s, ok := queue.(block.IdleReleaser); ok {
			s.ReleaseIdle()
		}
	}
}

// Abort implements [block.Queue].
func (q *crcQueue) Abort() {
	q.inner.Abort()
	q.Queue.Abort()
}

// Close implements [block.Queue]. It waits for what the inner queue has begun,
// for its writes have sums.
func (q *crcQueue) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	q.Abort()
	dst := make([]*block.Request, q.depth)
	for len(q.free) < q.depth {
		if q.collect(dst) == 0 {
			q.sleep()
		}
	}
	err := q.inner.Close()
	if e := q.Queue.Close(); err == nil {
		err = e
	}
	if q.poll >= 0 {
		if e := unix.Close(q.poll); err == nil {
			err = e
		}
	}
	return err
}

// sleep waits for the inner queue.
func (q *crcQueue) sleep() {
	d, ok := q.inner.Arm()
	if !ok {
		return
	}
	var timeout *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		timeout = &t
	}
	fds := []unix.PollFd{{Fd: int32(q.inner.FD()), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds, timeout, nil); err != nil && err != unix.EINTR {
		time.Sleep(time.Millisecond) // only waiting is safe
	}
}
