package limit

import (
	"time"

	"github.com/viablk/viablk/internal/block"
)

// waiter is a request that waits, and since when.
type waiter struct {
	request *block.Request
	since   time.Duration // a time of the clock
}

// backlog is the requests of a queue in order: first those that are admitted
// and not yet dequeued by the owner, then those that wait. The export's lock
// guards it.
type backlog struct {
	session  *Session
	ring     []waiter
	begin    int
	admitted int           // not yet dequeued
	waiting  int           // behind them
	start    time.Duration // virtual, of the first that waits, while it competes
}

func newBacklog(s *Session, depth int) backlog {
	return backlog{session: s, ring: make([]waiter, depth)}
}

// push adds a request that waits. There is room for it.
func (l *backlog) push(w waiter) {
	l.ring[(l.begin+l.admitted+l.waiting)%len(l.ring)] = w
	l.waiting++
}

// first returns the first one that waits.
func (l *backlog) first() *waiter { return &l.ring[(l.begin+l.admitted)%len(l.ring)] }

// admitFirst admits the first waiting request.
func (l *backlog) admitFirst() waiter {
	w := *l.first()
	l.admitted++
	l.waiting--
	return w
}

// popAdmitted moves admitted requests to dst.
func (l *backlog) popAdmitted(dst []*block.Request) int {
	n := min(l.admitted, len(dst))
	for i := range n {
		dst[i] = l.ring[l.begin].request
		l.ring[l.begin] = waiter{}
		l.begin = (l.begin + 1) % len(l.ring)
	}
	l.admitted -= n
	return n
}
