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

// line is the requests of a queue in order: first those that were let through and
// that its owner has not taken yet, then those that wait. The export's lock guards
// it.
type line struct {
	session *Session
	ring    []waiter
	begin   int
	passed  int           // let through
	waits   int           // behind them
	start   time.Duration // virtual, of the first that waits, while it competes
}

func newLine(s *Session, depth int) line {
	return line{session: s, ring: make([]waiter, depth)}
}

// push adds a request that waits. There is room for it.
func (l *line) push(w waiter) {
	l.ring[(l.begin+l.passed+l.waits)%len(l.ring)] = w
	l.waits++
}

// first returns the first one that waits.
func (l *line) first() *waiter { return &l.ring[(l.begin+l.passed)%len(l.ring)] }

// pass lets the first one through that waits.
func (l *line) pass() waiter {
	w := *l.first()
	l.passed++
	l.waits--
	return w
}

// take moves to dst what was let through.
func (l *line) take(dst []*block.Request) int {
	n := min(l.passed, len(dst))
	for i := range n {
		dst[i] = l.ring[l.begin].request
		l.ring[l.begin] = waiter{}
		l.begin = (l.begin + 1) % len(l.ring)
	}
	l.passed -= n
	return n
}
