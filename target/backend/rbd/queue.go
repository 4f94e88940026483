//go:build rbd && cgo

package rbd

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ring"
)

// queue is a [block.Queue] of an image. Requests that overlap are atomic in
// each [block.AtomicUnit], because accesses to an object are.
type queue struct {
	*block.Buffers
	device      *Device
	completions *completions
	slots       []slot
	free        []uint32
	pending     []uint32 // slots to submit
	done        ring.Ring[*block.Request]
	depth, held int // held: requests submitted and not reaped
	aborted     bool
	closed      bool
}

// slot is a request that librbd or the worker has, or is to get.
type slot struct {
	r        *block.Request
	flushing bool  // its write is answered, and it has FUA
	waits    bool  // the worker has it
	err      error // why a flush failed, to the worker; the answer, from it
}

func newQueue(d *Device, depth int) (*queue, error) {
	if err := block.CheckDepth(depth); err != nil {
		return nil, err
	}
	buffers, err := block.NewBuffers(block.PayloadLimit)
	if err != nil {
		return nil, err
	}
	q := &queue{
		Buffers: buffers, device: d, depth: depth, slots: make([]slot, depth), free: make([]uint32, 0, depth),
		pending: make([]uint32, 0, depth), done: ring.New[*block.Request](depth),
	}
	for i := range depth {
		q.free = append(q.free, uint32(depth-1-i))
	}
	if q.completions, err = d.connection.newCompletions(depth); err != nil {
		return nil, fmt.Errorf("open a queue of %s: %w", d.name, err)
	}
	return q, nil
}

// Submit implements [block.Queue].
func (q *queue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	if r.Err = q.refuse(r); r.Err != nil {
		q.done.Push(r)
		return true
	}
	last := len(q.free) - 1
	i := q.free[last]
	q.free = q.free[:last]
	q.slots[i] = slot{r: r}
	q.start(i)
	return true
}

// refuse returns why a request does not begin, or nil.
func (q *queue) refuse(r *block.Request) error {
	d := q.device
	if e := d.revoked.Load(); e != nil {
		return e
	}
	switch {
	case q.aborted:
		return unix.ECANCELED
	case r.Op == block.Flush:
		return nil
	case r.Op == block.Prefetch || r.Length <= 0:
		return unix.EINVAL
	case r.Op == block.WriteZeroes && r.Flags&(block.FastZero|block.NoHole) == block.FastZero|block.NoHole:
		return unix.ENOTSUP
	case r.Offset+r.Length <= d.size.Load():
		return nil
	case r.Op == block.Write || r.Op == block.WriteZeroes:
		return unix.ENOSPC // librbd would cut it off
	}
	return unix.EINVAL
}

// operationOf returns what librbd does for a request.
func operationOf(r *block.Request) operation {
	switch r.Op {
	case block.Read:
		return opRead
	case block.Write:
		return opWrite
	case block.Trim:
		return opDiscard
	case block.WriteZeroes:
		if r.Flags&block.NoHole != 0 {
			return opZeroThick
		}
		return opZero
	}
	return opFlush
}

// durable reports whether a request is answered when it is durable.
func durable(r *block.Request) bool {
	return r.Op == block.Flush || r.Flags&block.FUA != 0 && r.Op != block.Read && r.Op != block.Status
}

// start has the worker execute a request, or Kick submit it.
func (q *queue) start(i uint32) {
	r := q.slots[i].r
	if r.Op == block.Status || q.device.failing.Load() && durable(r) {
		q.slots[i].waits = true
		q.device.worker.add(job{q, i})
		return
	}
	q.completions.prepare(i, operationOf(r), r.Offset, r.Length, r.Data)
	q.pending = append(q.pending, i)
}

// Kick implements [block.Queue].
func (q *queue) Kick() {
	if len(q.pending) > 0 {
		q.completions.submit(q.pending)
		q.pending = q.pending[:0]
	}
}

// Reap implements [block.Queue].
func (q *queue) Reap(dst []*block.Request) int {
	for q.begun() > 0 {
		n := q.completions.fetch()
		waiting := len(q.pending)
		for i := range n {
			q.finish(q.completions.result(i))
		}
		if again := q.pending[waiting:]; len(again) > 0 {
			q.completions.submit(again)
			q.pending = q.pending[:waiting]
		}
		if n < batch {
			break
		}
	}
	n := q.done.PopInto(dst)
	q.held -= n
	return n
}

// begun returns how many slots librbd and the worker have.
func (q *queue) begun() int { return q.depth - len(q.free) - len(q.pending) }

// finish handles the result of a slot: its request has ended, or goes on to its
// flush or to the worker.
func (q *queue) finish(i uint32, value int64) {
	d, s := q.device, &q.slots[i]
	r := s.r
	switch {
	case s.waits:
		q.answer(i, d.worker.result(s))
	case value < 0 && (s.flushing || r.Op == block.Flush):
		err := d.failed(r, syscall.Errno(-value))
		if d.Revoked() != nil {
			q.answer(i, err)
			return
		}
		d.failing.Store(true)
		s.waits, s.err = true, err
		d.worker.add(job{q, i})
	case value < 0:
		q.answer(i, d.failed(r, syscall.Errno(-value)))
	case r.Op == block.Read && value != r.Length:
		q.answer(i, fmt.Errorf("%v of %d bytes at %d of %s: the image ends before: %w", r.Op, r.Length, r.Offset, d.name, unix.EINVAL))
	case durable(r) && r.Op != block.Flush && !s.flushing:
		q.completions.release(i)
		q.completions.prepare(i, opFlush, 0, 0, nil)
		s.flushing = true
		q.pending = append(q.pending, i)
	default:
		q.answer(i, nil)
	}
}

// answer ends the request of a slot. Reap returns it.
func (q *queue) answer(i uint32, err error) {
	q.completions.release(i)
	r := q.slots[i].r
	r.Err = err
	q.done.Push(r)
	q.slots[i] = slot{}
	q.free = append(q.free, i)
}

// failed returns the error of a request that failed in the cluster.
func (d *Device) failed(r *block.Request, errno syscall.Errno) error {
	what := fmt.Sprintf("%v of %d bytes at %d of %s", r.Op, r.Length, r.Offset, d.name)
	beyond := r.Op != block.Flush && r.Offset+r.Length > d.size.Load()
	switch {
	case errno == unix.ESHUTDOWN, errno == unix.EROFS && !d.cfg.ReadOnly:
		return d.revoke(errno)
	case errno == unix.EINVAL && beyond && (r.Op == block.Write || r.Op == block.WriteZeroes):
		errno = unix.ENOSPC
	case errno == unix.ENOSPC, errno == unix.EDQUOT:
		d.full.Warn(d.cfg.Log, "no space for writes to the disk: add some to the cluster, or raise the quota of the pool", "event", "disk_full", "path", d.name, "error", errno)
	case errno == unix.ENOENT:
		return fmt.Errorf("%s: the image or its pool is gone (%v): %w", what, errno, unix.EIO)
	}
	return fmt.Errorf("%s: %w", what, errno)
}

// Arm implements [block.Queue].
func (q *queue) Arm() (time.Duration, bool) {
	if !q.done.Empty() || q.begun() > 0 && !q.completions.arm() {
		return 0, false
	}
	return q.Tidy(), true
}

// FD implements [block.Queue].
func (q *queue) FD() int { return q.completions.fd }

// Abort implements [block.Queue]. librbd has begun what Kick submitted.
func (q *queue) Abort() {
	q.aborted = true
	for _, i := range q.pending {
		q.answer(i, unix.ECANCELED)
	}
	q.pending = q.pending[:0]
}

// Close implements [block.Queue]. It waits for the cluster.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	q.Abort()
	q.closed = true
	reaped := make([]*block.Request, q.depth)
	for {
		q.Reap(reaped)
		if q.begun() == 0 {
			break
		}
		if _, ok := q.Arm(); !ok {
			continue
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			time.Sleep(time.Millisecond) // only waiting is safe
		}
	}
	return errors.Join(q.Buffers.Close(), q.completions.close())
}
