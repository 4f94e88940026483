package simulation

import "github.com/viablk/viablk/via"

// entry is a report that waits in a queue, with the link it belongs to.
type entry struct {
	done via.Done
	link *link
}

// queue is a completion queue.
type queue struct {
	*file
	entries []entry
	head    int
	armed   bool
}

// push adds a report and wakes the consumer if it sleeps.
func (q *queue) push(l *link, d via.Done) {
	q.entries = append(q.entries, entry{d, l})
	if q.armed {
		q.armed = false
		q.Ring()
	}
}

// discard removes the reports of a link.
func (q *queue) discard(l *link) {
	kept := q.entries[:q.head]
	for _, e := range q.entries[q.head:] {
		if e.link != l {
			kept = append(kept, e)
		}
	}
	clear(q.entries[len(kept):])
	q.entries = kept
}

// Poll takes reports.
func (q *queue) Poll(dst []via.Done) int {
	if q.readable {
		q.Drain()
	}
	n := 0
	for n < len(dst) && q.head < len(q.entries) {
		dst[n] = q.entries[q.head].done
		q.entries[q.head] = entry{}
		q.head++
		n++
	}
	if q.head == len(q.entries) {
		q.entries, q.head = q.entries[:0], 0
	}
	return n
}

// Arm asks for the next report to make the file descriptor readable.
func (q *queue) Arm() bool {
	q.armed = q.head == len(q.entries)
	return q.armed
}

// Resize has nothing to do: the queue grows.
func (q *queue) Resize(int) error { return nil }
