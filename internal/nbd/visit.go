package nbd

import (
	"io"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/loop"
)

// The share of a visit: then other connections of the loop have theirs. One
// without others has it several times, so that the loop looks for others less
// often.
const (
	visitIterations = 16
	visitBytes      = 1 << 20 // received and sent
	aloneShare      = 4
)

// wakers are what ends the sleep of a connection: its client, the server, its
// queue, or time.
type wakers struct {
	client, bell, queue loop.File
	files               [3]*loop.File

	asleep bool // since the last visit
	began  time.Time
	limit  time.Duration // negative: none

	closed bool // the client sends nothing but what has arrived
	gone   bool // the client takes nothing any more
}

func newWakers(s *session) wakers {
	return wakers{client: loop.File{FD: int(s.sock), Edge: true}, bell: loop.File{FD: s.bell}}
}

// Visit implements [loop.Task]. A panic, in a device most likely, ends this
// connection.
func (t *transmission) Visit(r loop.Round) (next loop.Next) {
	next.Done = true
	defer t.conn.recover(&t.outcome)
	var err error
	if next, err = t.visit(r); err != nil {
		t.outcome, next = err, loop.Next{Done: true}
	}
	return next
}

// visit serves the client until there is nothing to do, or its share is used
// up. The connection is done when the client disconnects (no error), leaves
// (io.EOF or io.ErrUnexpectedEOF), breaks the protocol, the server ends, or the
// client is idle (errIdle).
func (t *transmission) visit(r loop.Round) (loop.Next, error) {
	t.awake(r)
	iterations, bytes := visitIterations, uint64(visitBytes)
	if r.Alone {
		iterations, bytes = aloneShare*iterations, aloneShare*bytes
	}
	bytes += t.in.total + t.out.total
	for ; iterations > 0 && t.in.total+t.out.total < bytes; iterations-- {
		if t.hangingUp != nil {
			return t.hangUp()
		}
		progress, err := t.iterate()
		if err != nil {
			return loop.Next{}, err
		}
		if t.iterations++; t.iterations%64 == 0 {
			t.publish()
			t.tendAge(t.timing.Now())
			t.timing.recorder.Publish()
		}
		if progress {
			continue
		}
		if t.done() {
			if t.in.phase == ended && (t.in.end != nil || !t.sock.closesLast()) {
				return loop.Next{Done: true}, t.in.end
			}
			t.beginHangUp()
			continue
		}
		if r.Alone {
			if progress, err = t.busyPoll(); err != nil {
				return loop.Next{}, err
			} else if progress {
				continue
			}
		}
		if next, ok, err := t.sleep(); ok || err != nil {
			return next, err
		}
	}
	return loop.Next{Again: true}, nil
}

// awake takes what the loop has found, and ends a sleep.
func (t *transmission) awake(r loop.Round) {
	w := &t.wakers
	if r.Yielded {
		t.counts[countYields]++
	}
	if w.client.Ready {
		t.in.wouldBlock = false
	}
	if w.client.Writable {
		t.out.wouldBlock = false
	}
	w.closed = w.closed || w.client.Closed
	w.gone = w.gone || w.client.Gone
	if w.bell.Ready {
		eventfd.Drain(t.bell)
		t.counts[countSyscalls]++
	}
	if !w.asleep {
		return
	}
	w.asleep = false
	woken := w.client.Ready || w.client.Writable || w.bell.Ready || w.queue.Ready
	t.addIdleTime(w.limit, !woken && w.limit >= 0 && time.Since(w.began) >= w.limit)
	t.timing.Expire()
}

// sleep returns what the connection waits for: the socket, the queue, or the
// server. It returns false if there is something to do now.
func (t *transmission) sleep() (next loop.Next, ok bool, err error) {
	w := &t.wakers
	if w.gone && t.in.phase != ended && !t.needsInput() {
		t.abandon(io.ErrUnexpectedEOF) // it gets no reply: what it sent is not read
		return next, false, nil
	}
	if t.inQueue == 0 {
		t.queue.Reap(nil) // an idle remote device keeps its connection alive
	}
	wait, edges, ok := block.ArmEdge(t.queue)
	if !ok && t.inQueue > 0 {
		return next, false, nil
	}
	if !ok {
		wait = 0 // only look at the socket
	}
	if wait, err = t.bound(wait); err != nil {
		return next, false, err
	}
	now := time.Now()
	t.timing.At(now.Sub(t.epoch))
	t.tendAge(now.Sub(t.epoch))
	t.counts[countSleeps]++
	t.counts[countSyscalls]++
	t.publish()
	t.timing.recorder.Publish()
	w.asleep, w.began, w.limit = true, now, wait
	w.client.Write = t.sending()
	w.queue.FD, w.queue.Version, w.queue.Edge = t.queue.FD(), block.FDVersion(t.queue), edges
	w.files = [...]*loop.File{&w.client, &w.bell, &w.queue}
	return loop.Next{Wait: wait, Files: w.files[:], Source: block.SourceOf(t.queue)}, true, nil
}
