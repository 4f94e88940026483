package via

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/eventfd"
)

// eventCQ is a scriptedCQ that wakes who sleeps on it. Any goroutine may push.
type eventCQ struct {
	t  *testing.T
	fd int

	mu    sync.Mutex
	done  []Done
	armed bool
}

// withEvents makes the provider's queues eventCQs.
func withEvents(t *testing.T) *scriptedProvider {
	t.Helper()
	p := newScripted()
	p.newCQ = func() AdapterCQ {
		fd, err := eventfd.New()
		if err != nil {
			t.Fatal(err)
		}
		return &eventCQ{t: t, fd: fd}
	}
	return p
}

func (q *eventCQ) push(d ...Done) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done = append(q.done, d...)
	if q.armed {
		q.armed = false
		eventfd.Ring(q.fd)
	}
}

func (q *eventCQ) Poll(dst []Done) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	eventfd.Drain(q.fd)
	n := copy(dst, q.done)
	q.done = q.done[n:]
	return n
}

func (q *eventCQ) Arm() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = len(q.done) == 0
	return q.armed
}
func (q *eventCQ) FD() int          { return q.fd }
func (q *eventCQ) Resize(int) error { return nil }
func (q *eventCQ) Close() error     { return eventfd.Close(q.fd) }

// watchLeaks fails the test if a goroutine outlives it.
func watchLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if !t.Failed() {
			goleak.VerifyNone(t, before)
		}
	})
}

// close tears a bench down: every object goes without complaint.
func (b *bench) close() {
	b.t.Helper()
	b.must(b.vi.Disconnect())
	b.drain()
	b.must(b.vi.Destroy())
	if !b.cq.private {
		b.must(b.cq.Destroy())
	}
	b.must(b.mem.Deregister())
	b.must(b.nic.Close())
}

// drain takes everything off the VI's queues.
func (b *bench) drain() {
	b.poll()
	for _, done := range []func() (*Descriptor, error){b.vi.SendDone, b.vi.RecvDone} {
		for d, _ := done(); d != nil; d, _ = done() {
		}
	}
}

// workQueues gives the bench a VI without completion queues.
func (b *bench) workQueues(send, recv int) {
	b.t.Helper()
	attrs := b.vi.attrs
	b.must(b.vi.Destroy())
	vi, err := b.nic.CreateVi(attrs, ViConfig{SendDepth: send, RecvDepth: recv})
	b.must(err)
	b.must(b.cq.Destroy())
	b.vi, b.cq = vi, vi.send.cq
}
