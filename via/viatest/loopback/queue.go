package loopback

import (
	"sync"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
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

	mu sync.Mutex
	// +checklocks:mu
	ring []entry
	// +checklocks:mu
	head, n int
	// +checklocks:mu
	reserved int // entries that the bound links may need
	// +checklocks:mu
	armed bool // the next push makes fd readable
	// +checklocks:mu
	signaled bool // fd is readable
}

func newQueue() (*queue, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
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
		eventfd.Ring(q.fd)
	}
}

func notice(d via.Done) bool { return d.Event != nil && !d.Event.Broken }

// discard removes undelivered reports of a link.
func (q *queue) discard(l *link) {
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
		eventfd.Drain(q.fd)
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
func (q *queue) Close() error { return eventfd.Close(q.fd) }
