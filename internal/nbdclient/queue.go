package nbdclient

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ring"
	"golang.org/x/sys/unix"
)

// Cookies are the index of a slot, and a number that no other request of the
// queue has.
const (
	slotBits = 16
	slotMask = 1<<slotBits - 1
)

// closeTimeout bounds how long Close waits for the server.
const closeTimeout = 10 * time.Second

// queue is a [block.Queue] with a connection of its own, which its owner
// drives: no goroutine and no lock is between the owner and the socket. The
// buffers of the queue are memory for any request.
type queue struct {
	*block.Buffers
	device *Device
	slots  []slot
	free   []uint16
	next   uint64 // number of the next piece

	holds   *holds
	granted []uint16
	pending ring.Ring[uint16] // slots to send
	done    ring.Ring[*block.Request]

	poll    int // epoll: bell, socket
	bell    *bell
	link    *link // nil while there is none
	events  uint32
	redial  redial
	counted []uint16 // slots answered by what was received last
	aborted bool
	once    bool // the queue does not connect again
	closed  bool
	held    int              // requests submitted and not reaped
	reaped  []*block.Request // of Close
}

// newQueue returns a queue with a connection, which it takes also when it
// fails. With nil it has none yet.
func newQueue(d *Device, depth int, first *connection) (q *queue, err error) {
	q = &queue{
		device: d, slots: make([]slot, depth), free: make([]uint16, 0, depth),
		granted: make([]uint16, 0, depth), pending: ring.New[uint16](depth), done: ring.New[*block.Request](depth),
		counted: make([]uint16, 0, depth), poll: -1, reaped: make([]*block.Request, depth),
	}
	defer func() {
		if err != nil {
			if first != nil {
				first.opened.Stream.Close()
			}
			err = fmt.Errorf("open a queue of %s: %w", d.cfg.Name, errors.Join(err, q.release()))
		}
	}()
	for i := range depth {
		q.free = append(q.free, uint16(depth-1-i))
	}
	if q.Buffers, err = block.NewBuffers(block.PayloadLimit); err != nil {
		return nil, err
	}
	if q.bell, err = newBell(); err != nil {
		return nil, err
	}
	q.holds = newHolds(d.ranges, depth, q.bell)
	if q.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make an epoll: %w", err)
	}
	if err = q.watch(unix.EPOLL_CTL_ADD, q.bell.fd, unix.EPOLLIN); err != nil {
		return nil, err
	}
	if first == nil {
		return q, nil
	}
	return q, q.connect(first)
}

// watch changes what makes the queue's descriptor readable.
func (q *queue) watch(op, fd int, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(q.poll, op, fd, &event); err != nil {
		return fmt.Errorf("change an epoll: %w", err)
	}
	return nil
}

// connect has the queue use a connection.
func (q *queue) connect(c *connection) error {
	if err := q.watch(unix.EPOLL_CTL_ADD, c.opened.Stream.FD(), unix.EPOLLIN); err != nil {
		return err
	}
	q.events = unix.EPOLLIN
	q.link = newLink(c, q.slots, q.left, q.finished)
	return nil
}

// Submit implements [block.Queue].
func (q *queue) Submit(r *block.Request) bool {
	if q.held == len(q.slots) {
		return false
	}
	q.held++
	r.Err = nil
	switch {
	case q.aborted:
		r.Err = unix.ECANCELED
	case q.redial.expired:
		r.Err = q.redial.err(q.device)
	case r.Op == 0 || r.Op > block.Prefetch || r.Length == 0 && r.Op != block.Flush:
		r.Err = unix.EINVAL
	}
	last := len(q.free) - 1
	i := q.free[last]
	q.free = q.free[:last]
	s := &q.slots[i]
	s.r, s.base, s.end, s.slowZero = r, 0, 0, false
	if r.Err != nil {
		q.answer(i, r.Err)
		return true
	}
	q.begin(i)
	return true
}

// begin begins the next piece of a slot.
func (q *queue) begin(i uint16) {
	s := &q.slots[i]
	s.unanswered()
	s.end = s.base + q.device.pieces.length(s.r, s.base)
	q.next++
	s.cookie = q.next<<slotBits | uint64(i)
	switch s.r.Op {
	case block.Read, block.Write, block.Trim, block.WriteZeroes:
		if !q.holds.acquire(i, s.offset(), s.length(), s.r.Op != block.Read) {
			s.state = slotWaiting
			return
		}
	}
	s.state = slotPending
	q.pending.Push(i)
}

// answer ends the request of a slot. Reap returns it.
func (q *queue) answer(i uint16, err error) {
	s := &q.slots[i]
	q.holds.release(i)
	s.r.Err = err
	q.done.Push(s.r)
	s.r, s.state = nil, slotFree
	q.free = append(q.free, i)
}

// Kick implements [block.Queue].
func (q *queue) Kick() {
	if q.link == nil || q.pending.Empty() {
		return
	}
	q.send()
}

// send sends what is pending.
func (q *queue) send() (progress bool) {
	if !q.pending.Empty() {
		q.stampFlushes()
	}
	progress, err := q.link.sender.send(q.link.stream, &q.pending)
	if err != nil {
		q.lose(err)
	}
	return progress
}

// stampFlushes notes what the flushes that are about to be sent cover.
func (q *queue) stampFlushes() {
	for k := range q.pending.Len() {
		if s := &q.slots[*q.pending.At(k)]; s.r.Op == block.Flush {
			s.covered = q.device.generations.covers()
		}
	}
}

// left is called when the message of a slot has left.
func (q *queue) left(i uint16) {
	s := &q.slots[i]
	s.state = slotSent
	if s.answered {
		q.counted = append(q.counted, i)
	}
}

// finished is called when the reply to a slot is complete. A server may refuse
// a write before all of it has arrived: until it has left, its memory is in
// use.
func (q *queue) finished(i uint16) {
	if q.slots[i].state == slotSent {
		q.counted = append(q.counted, i)
	}
}

// Reap implements [block.Queue].
func (q *queue) Reap(dst []*block.Request) int {
	q.progress()
	n := q.done.PopInto(dst)
	q.held -= n
	return n
}

// progress does what can be done now.
func (q *queue) progress() {
	if q.bell.receiveRings() {
		q.handleRing()
	}
	if q.link == nil {
		q.redial.poll(q)
		if q.link == nil {
			return
		}
	}
	for again := true; again && q.link != nil; {
		err := q.link.receive()
		// Answers that arrived before the end of a connection count.
		again = q.complete()
		if err != nil {
			q.lose(err)
		} else if q.link != nil && (!q.pending.Empty() || !q.link.sender.idle()) {
			q.send()
			again = q.complete() || again
		}
	}
}

// handleRing handles the ranges that other goroutines granted.
func (q *queue) handleRing() {
	for _, i := range q.holds.acquired(q.granted[:0]) {
		switch s := &q.slots[i]; {
		case q.aborted && s.base == 0:
			q.answer(i, unix.ECANCELED)
		case q.redial.expired:
			q.answer(i, q.redial.err(q.device))
		default:
			s.state = slotPending
			q.pending.Push(i)
		}
	}
}

// complete counts what was answered, then ends it or begins its next piece. It
// reports whether there is more to send.
func (q *queue) complete() bool {
	if len(q.counted) == 0 || q.link == nil {
		return false
	}
	writes := 0
	for _, i := range q.counted {
		if s := &q.slots[i]; s.changes() && s.r.Flags&block.FUA == 0 {
			writes++
		}
	}
	if !q.device.generations.count(q.link.generation, writes) {
		q.lose(errSuperseded) // the slots are still sent, and not answered
		return false
	}
	for _, i := range q.counted {
		q.completePiece(i)
	}
	q.counted = q.counted[:0]
	return !q.pending.Empty()
}

// completePiece ends the piece of a slot.
func (q *queue) completePiece(i uint16) {
	s := &q.slots[i]
	r := s.r
	switch {
	case s.err != nil && s.base > 0 && r.Op == block.WriteZeroes && !s.slowZero &&
		r.Flags&block.FastZero != 0 && block.Errno(s.err) == unix.ENOTSUP:
		s.slowZero = true // a part of the range is zeroes already
	case s.err != nil:
		q.answer(i, fmt.Errorf("%s: %v of %d bytes at %d: %w", q.device.cfg.Name, r.Op, s.length(), s.offset(), s.err))
		return
	case r.Op == block.Flush:
		q.device.generations.flush(q.link.generation, s.covered)
		q.answer(i, nil)
		return
	case r.Op == block.Status || s.end == r.Length:
		q.answer(i, nil)
		return
	default:
		s.base = s.end
	}
	q.holds.release(i)
	q.begin(i)
}

// Arm implements [block.Queue].
func (q *queue) Arm() (time.Duration, bool) {
	if !q.done.Empty() || q.bell.rang() {
		return 0, false
	}
	d := q.Tidy()
	if q.link == nil {
		return q.redial.arm(d), true
	}
	if !q.pending.Empty() && !q.link.sender.blocked {
		return 0, false
	}
	events := uint32(unix.EPOLLIN)
	if q.link.sender.blocked || q.link.stream.Pending() {
		events |= unix.EPOLLOUT
	}
	if events != q.events {
		if err := q.watch(unix.EPOLL_CTL_MOD, q.link.stream.FD(), events); err != nil {
			q.lose(err)
			return 0, false
		}
		q.events = events
	}
	return d, true
}

// FD implements [block.Queue].
func (q *queue) FD() int { return q.poll }

// Abort implements [block.Queue].
func (q *queue) Abort() {
	q.aborted = true
	for !q.pending.Empty() {
		// A piece behind the first has begun, and goes on to its end.
		if i := q.pending.Pop(); q.slots[i].base == 0 || q.link == nil {
			q.answer(i, unix.ECANCELED)
		} else {
			q.granted = append(q.granted, i)
		}
	}
	for _, i := range q.granted {
		q.pending.Push(i)
	}
	q.granted = q.granted[:0]
}

// lose gives up the connection because of err.
func (q *queue) lose(err error) {
	l := q.link
	q.link = nil
	_ = q.watch(unix.EPOLL_CTL_DEL, l.stream.FD(), 0)
	l.stream.Close()
	q.counted = q.counted[:0]
	writes := false
	for i := range q.slots {
		s := &q.slots[i]
		writes = writes || s.changes() && (s.state == slotSending || s.state == slotSent)
	}
	failure := q.device.lost(l.generation, writes, err)
	q.pending.Clear()
	for i := range q.slots {
		if s := &q.slots[i]; s.state >= slotPending {
			s.unanswered()
			s.state = slotPending
			q.pending.Push(uint16(i))
		}
	}
	if failure == nil && (q.closed || q.once) {
		failure = err
	}
	if failure != nil {
		q.redial.fail(failure)
		q.abandon()
		return
	}
	q.redial.begin(q, err)
}

// abandon answers everything that has not been sent with why the queue has no
// connection.
func (q *queue) abandon() {
	err := q.redial.err(q.device)
	for !q.pending.Empty() {
		q.answer(q.pending.Pop(), err)
	}
}

// Close implements [block.Queue].
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	q.Abort()
	q.closed = true
	q.redial.stop()
	deadline := time.Now().Add(closeTimeout)
	for q.link != nil && q.begun() {
		q.Reap(q.reaped)
		if q.link == nil || !q.begun() {
			break
		}
		left := time.Until(deadline)
		if left <= 0 {
			q.lose(errSilent)
			break
		}
		if d, ok := q.Arm(); ok {
			if d >= 0 {
				left = min(left, d)
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(q.poll), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != nil && err != unix.EINTR {
				q.lose(err)
			}
		}
	}
	if q.link != nil {
		q.link.disconnect()
		q.link = nil
	}
	return q.release()
}

// discard ends requests that have not been sent, or were sent to a server that
// is lost.
func (q *queue) discard(which func(*block.Request) bool) {
	for range q.pending.Len() {
		i := q.pending.Pop()
		if which(q.slots[i].r) {
			q.answer(i, unix.ECANCELED)
		} else {
			q.pending.Push(i)
		}
	}
}

// begun reports whether a request has begun and not ended.
func (q *queue) begun() bool {
	for i := range q.slots {
		if s := &q.slots[i]; s.state >= slotPending || s.state == slotWaiting && s.base > 0 {
			return true
		}
	}
	return false
}

// release frees what the queue has.
func (q *queue) release() error {
	var err error
	if q.holds != nil {
		q.holds.close()
	}
	if q.bell != nil {
		err = q.bell.close()
	}
	if q.poll >= 0 {
		err = errors.Join(err, unix.Close(q.poll))
	}
	if q.Buffers != nil {
		err = errors.Join(err, q.Buffers.Close())
	}
	return err
}
