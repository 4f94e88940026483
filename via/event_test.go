package via

import (
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
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
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
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
		if _, err := unix.Write(q.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			q.t.Error(err)
		}
	}
}

func (q *eventCQ) Poll(dst []Done) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	var count [8]byte
	_, _ = unix.Read(q.fd, count[:]) // it may be readable
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
func (q *eventCQ) Close() error     { return unix.Close(q.fd) }

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
	if !b.cq.own {
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
