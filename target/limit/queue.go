package limit

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// queue is a queue of a session. Requests go to the disk in order, when the export
// has let them through; only a Flush passes the others.
type queue struct {
	block.Queue // of the disk; it has all memory
	export      *Export
	line        line // its requests; the export's lock guards it
	depth       int
	with        int              // in the line
	held        int              // in the line, or with the disk
	through     []*block.Request // scratch
	wait        time.Duration    // until the line asks again; never if nothing waits
	started     bool             // something went to the disk and was not kicked
	fd, own     int              // own is an eventfd that is never readable, or -1
}

// batch is how many requests a queue takes at a time that were let through.
const batch = 32

// NewQueue implements [block.Device].
func (s *Session) NewQueue(depth int) (block.Queue, error) {
	inner, err := s.export.device.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	q := &queue{
		Queue: inner, export: s.export, line: newLine(s, depth), depth: depth,
		through: make([]*block.Request, batch), wait: never, fd: inner.FD(), own: -1,
	}
	if q.fd < 0 {
		// A disk that answers in Submit has nothing to sleep on, but here is something
		// to sleep for.
		if q.own, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			_ = inner.Close()
			return nil, fmt.Errorf("make an eventfd: %w", err)
		}
		q.fd = q.own
	}
	s.export.keep(s)
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
	q.with++
	if q.with > 1 { // it waits behind others
		q.export.join(&q.line, r)
		return true
	}
	n, wait := q.export.ask(&q.line, r, q.through)
	q.wait = wait
	q.forward(n)
	return true
}

// advance hands to the disk what may go.
func (q *queue) advance() {
	for more := true; more && q.with > 0; {
		var n int
		n, q.wait = q.export.turn(&q.line, q.through)
		q.forward(n)
		more = n == batch
	}
	if q.with == 0 {
		q.wait = never
	}
}

// forward hands requests to the disk, whose queue is as deep as this one.
func (q *queue) forward(n int) {
	for i, r := range q.through[:n] {
		q.through[i] = nil
		if !q.Queue.Submit(r) {
			panic("limit: queue of the disk is not as deep as it said")
		}
		q.started = true
	}
	q.with -= n
}

func (q *queue) Kick() {
	q.started = false
	q.Queue.Kick()
}

func (q *queue) Reap(dst []*block.Request) int {
	if q.with > 0 {
		q.advance()
	}
	if q.started {
		q.Kick()
	}
	n := q.Queue.Reap(dst)
	q.held -= n
	return n
}

func (q *queue) Arm() (time.Duration, bool) {
	if q.with > 0 {
		before := q.with
		if q.advance(); q.with != before {
			return 0, false // the disk has something to do, and may have done it
		}
	}
	d, ok := q.Queue.Arm()
	if !ok {
		return 0, false
	}
	if q.with > 0 && (d < 0 || q.wait < d) {
		d = q.wait
	}
	return d, true
}

// Close lets what waits go without waiting: it is under way, and ends. It is
// charged all the same.
func (q *queue) Close() error {
	q.export.leave(&q.line)
	for q.with > 0 {
		q.advance()
	}
	q.Kick()
	err := q.Queue.Close()
	q.export.dismiss(q.line.session)
	if q.own >= 0 {
		_ = unix.Close(q.own)
		q.own = -1
	}
	return err
}
