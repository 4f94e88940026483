package limit

import (
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/eventfd"
)

// queue is a queue of a session. Requests go to the disk in order, when the
// export has admitted them; only a Flush overtakes others.
type queue struct {
	block.Queue // of the disk; it has all memory
	export      *Export
	backlog     backlog // its requests; the export's lock guards it
	depth       int
	queued      int              // in the backlog
	held        int              // in the backlog, or with the disk
	admitted    []*block.Request // scratch
	wait        time.Duration    // until the next pass; never if nothing waits
	dropped     []*block.Request // by Abort, and not reaped
	started     bool             // something went to the disk and was not kicked
	fd, idleFD  int              // idleFD is an eventfd that is never readable, or -1
}

// batch is how many admitted requests a queue dequeues at a time.
const batch = 32

// NewQueue implements [block.Device].
func (s *Session) NewQueue(depth int) (block.Queue, error) {
	inner, err := s.export.device.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	q := &queue{
		Queue: inner, export: s.export, backlog: newBacklog(s, depth), depth: depth,
		admitted: make([]*block.Request, batch), wait: never, fd: inner.FD(), idleFD: -1,
	}
	if q.fd < 0 {
		// A disk that answers in Submit has no descriptor, but this queue has
		// deadlines to sleep for.
		if q.idleFD, err = eventfd.New(); err != nil {
			_ = inner.Close()
			return nil, err
		}
		q.fd = q.idleFD
	}
	s.export.retainSession(s)
	return q, nil
}

func (q *queue) FD() int { return q.fd }

func (q *queue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	if r.Op == block.Flush {
		if !q.Queue.Submit(r) {
			return false
		}
		q.held++
		return true
	}
	q.held++
	q.queued++
	if q.queued > 1 { // it waits behind others
		q.export.enqueue(&q.backlog, r)
		return true
	}
	n, wait := q.export.enqueueAndPass(&q.backlog, r, q.admitted)
	q.wait = wait
	q.forward(n)
	return true
}

// admitReady hands admitted requests to the disk.
func (q *queue) admitReady() {
	for more := true; more && q.queued > 0; {
		var n int
		n, q.wait = q.export.pass(&q.backlog, q.admitted)
		q.forward(n)
		more = n == batch
	}
	if q.queued == 0 {
		q.wait = never
	}
}

// forward hands requests to the disk, whose queue is as deep as this one.
func (q *queue) forward(n int) {
	for i, r := range q.admitted[:n] {
		q.admitted[i] = nil
		if !q.Queue.Submit(r) {
			panic("limit: queue of the disk is not as deep as it said")
		}
		q.started = true
	}
	q.queued -= n
}

func (q *queue) Kick() {
	q.started = false
	q.Queue.Kick()
}

func (q *queue) Reap(dst []*block.Request) int {
	if q.queued > 0 {
		q.admitReady()
	}
	if q.started {
		q.Kick()
	}
	n := copy(dst, q.dropped)
	q.dropped = q.dropped[n:]
	n += q.Queue.Reap(dst[n:])
	q.held -= n
	return n
}

func (q *queue) Arm() (time.Duration, bool) {
	if q.queued > 0 {
		before := q.queued
		if q.admitReady(); q.queued != before {
			return 0, false // the disk has something to do, and may have done it
		}
	}
	if len(q.dropped) > 0 {
		return 0, false
	}
	d, ok := q.Queue.Arm()
	if !ok {
		return 0, false
	}
	if q.queued > 0 && (d < 0 || q.wait < d) {
		d = q.wait
	}
	return d, true
}

// Abort implements [block.Queue]. Requests that wait cost nothing.
func (q *queue) Abort() {
	q.dropped = append(q.dropped, q.export.discard(&q.backlog)...)
	for _, r := range q.dropped {
		r.Err = syscall.ECANCELED
	}
	q.queued, q.wait = 0, never
	q.Queue.Abort()
}

// Close implements [block.Queue].
func (q *queue) Close() error {
	q.Abort()
	err := q.Queue.Close()
	q.export.releaseSession(q.backlog.session)
	_ = eventfd.Close(q.idleFD)
	q.idleFD = -1
	return err
}
