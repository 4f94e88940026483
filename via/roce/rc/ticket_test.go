package rc

import (
	"testing"
	"time"
)

// TestTicketsGetRoomInOrder: room is for the first tickets, and for a QP
// without one only what they leave. A ticket that ends leaves its room to those
// behind it.
func TestTicketsGetRoomInOrder(t *testing.T) {
	l := newLineAt()
	l.window.Store(2)
	admits := func(what string, want bool, ticket int64) {
		t.Helper()
		if room := l.roomFor(ticket); room > 0 != want {
			t.Errorf("%s: there is room for %d packets of ticket %d", what, room, ticket)
		}
	}
	admits("empty", true, 0)
	l.add(2)
	first, second, third := l.acquireTicket(), l.acquireTicket(), l.acquireTicket()
	admits("full", false, first)
	l.add(-1)
	admits("one arrived", true, first)
	admits("one arrived", false, second)
	l.add(-1)
	admits("two arrived", true, second)
	admits("two arrived", false, third)
	l.add(1)
	l.releaseTicket()
	admits("the second got room", true, first)
	admits("the second got room", false, third)
	l.add(-1)
	admits("and that arrived", true, third)
	admits("and that arrived", false, 0)
	l.releaseTicket()
	admits("the first gave up", true, third)
	admits("the first gave up", true, 0)
	l.add(1)
	admits("one in flight", true, third)
	admits("one in flight", false, 0)

	l.add(1)
	l.acquireTicket()
	l.acquireTicket()
	l.releaseTicket()
	l.releaseTicket()
	admits("those behind the third got room", false, third)
}

// TestPartOfRoom: while others wait, a QP gets a part of a small window.
func TestPartOfRoom(t *testing.T) {
	l := newLineAt()
	l.window.Store(8)
	if n := l.roomFor(0); n != 8 {
		t.Errorf("alone, a QP has room for %d packets of 8", n)
	}
	if n := l.roomFor(l.acquireTicket()); n != 2 {
		t.Errorf("beside another one, a QP has room for %d packets of 8", n)
	}
}

// TestQPsAskForRoomInTime: who waits asks again when half of what it waits for
// can have arrived, the first one several times for each packet, and all within
// a bound.
func TestQPsAskForRoomInTime(t *testing.T) {
	l := newLineAt()
	for range 20 {
		l.trip(minLineQueueing)
	}
	l.window.Store(1)
	l.add(1)
	gap := time.Duration(l.timeout.Load())
	for _, c := range []struct {
		before      int
		least, most time.Duration
	}{{0, gap / retries, gap / 2}, {3, gap, 2 * gap}, {10_000, mostRetry, mostRetry}} {
		var ticket int64
		l.tickets.Store(0)
		for range c.before + 1 {
			ticket = l.acquireTicket()
		}
		if d := l.retry(ticket, l.now, l.now) - l.now; d < c.least || d > c.most {
			t.Errorf("behind %d others a QP asks again after %v, the line takes a packet in %v", c.before, d, gap)
		}
	}
}

// TestQPReleasesTicket: a QP that waits for its peer first, after a timeout or
// until that has a receive, keeps no room from others.
func TestQPReleasesTicket(t *testing.T) {
	for name, wait := range map[string]func(*lineAt, *QP, *Burst){
		"timeout": func(l *lineAt, q *QP, b *Burst) {
			for next := false; !next; {
				next = q.Timeouts() != 0
				l.now, _ = q.Deadline()
				q.Timeout(l.now)
				b.Reset()
				q.Emit(b, l.now)
			}
		},
		"no receive": func(l *lineAt, q *QP, b *Burst) {
			q.requester.startRNRDelay(time.Second, l.now)
			q.Emit(b, l.now)
		},
	} {
		l := newLineAt()
		l.window.Store(2)
		q, b := writer(t, l, 8)
		if !l.waiting() {
			t.Fatal("the QP has no ticket")
		}
		wait(l, q, b)
		if l.waiting() {
			t.Errorf("%s: the QP keeps its ticket", name)
		}
	}
}
