package loopback

import (
	"fmt"
	"sync"

	"github.com/viablk/viablk/via"
	"golang.org/x/sys/unix"
)

// entry is a report that waits in a queue, with the link it belongs to.
type entry struct {
	done via.Done
	link *link
}

// queue is a via.AdapterCQ: a ring that has room for everything its links can
// report, and an eventfd.
type queue struct {
	fd int

	mu       sync.Mutex
	ring     []entry
	head, n  int
	reserved int  // entries that the bound links may need
	armed    bool // the next push makes fd readable
	signaled bool // fd is readable
}

func newQueue() (*queue, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &queue{fd: fd}, nil
}

// reserve makes room for a link's reports, or gives it back. It keeps Poll and
// posts free of allocation.
func (q *queue) reserve(entries int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reserved += entries
	if q.reserved <= len(q.ring) {
		return
	}
	ring := make([]entry, q.reserved)
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
}

// push adds a report and wakes the consumer if it sleeps. There is room for it,
// but for events that do not break the connection there is so much and no more.
func (q *queue) push(l *link, d via.Done) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if notice(d) {
		if l.notices == maxNotices {
			return
		}
		l.notices++
	}
	q.ring[(q.head+q.n)%len(q.ring)] = entry{done: d, link: l}
	q.n++
	if q.armed {
		q.armed, q.signaled = false, true
		one := [8]byte{1}
		_, _ = unix.Write(q.fd, one[:]) // fails only when it is readable anyway
	}
}

func notice(d via.Done) bool { return d.Event != nil && !d.Event.Broken }

// drop removes what a link reported and nobody took.
func (q *queue) drop(l *link) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := 0
	for i := range q.n {
		e := q.ring[(q.head+i)%len(q.ring)]
		if e.link != l {
			q.ring[(q.head+kept)%len(q.ring)] = e
			kept++
		}
	}
	for i := kept; i < q.n; i++ {
		q.ring[(q.head+i)%len(q.ring)] = entry{}
	}
	q.n = kept
}

// Poll takes reports.
func (q *queue) Poll(dst []via.Done) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.signaled {
		q.signaled = false
		var count [8]byte
		_, _ = unix.Read(q.fd, count[:]) // readable by construction
	}
	n := min(len(dst), q.n)
	for i := range n {
		e := &q.ring[q.head]
		if dst[i] = e.done; notice(e.done) {
			e.link.notices--
		}
		*e = entry{}
		q.head = (q.head + 1) % len(q.ring)
	}
	q.n -= n
	return n
}

// Arm asks for the next report to make the file descriptor readable.
func (q *queue) Arm() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = q.n == 0
	return q.armed
}

// Resize is for nothing here: the ring has room for what its links can report.
func (q *queue) Resize(int) error { return nil }

// FD returns the eventfd.
func (q *queue) FD() int { return q.fd }

// Close closes the eventfd.
func (q *queue) Close() error { return unix.Close(q.fd) }
