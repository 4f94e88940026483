//go:build rbd && cgo

package rbd

import (
	"sync"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ring"
)

// worker is the goroutine of a disk that may wait for the cluster: it describes
// ranges, and counts writes that are lost.
type worker struct {
	ended chan struct{}

	mu   sync.Mutex
	work sync.Cond
	// +checklocks:mu
	jobs ring.Ring[job]
	// +checklocks:mu
	closed bool
}

// job is a slot whose request waits for the worker.
type job struct {
	queue *queue
	slot  uint32
}

func newWorker() *worker {
	w := &worker{ended: make(chan struct{}), jobs: ring.New[job](1)}
	w.work.L = &w.mu
	go w.routineWork()
	return w
}

// add gives the worker a slot. The queue gets it back as a result of its
// completions.
func (w *worker) add(j job) {
	w.mu.Lock()
	if w.jobs.Full() {
		w.jobs.Grow(2 * w.jobs.Cap())
	}
	w.jobs.Push(j)
	w.mu.Unlock()
	w.work.Signal()
}

// next returns the next job, or false at the end.
func (w *worker) next() (job, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.jobs.Empty() {
		if w.closed {
			return job{}, false
		}
		w.work.Wait()
	}
	return w.jobs.Pop(), true
}

func (w *worker) routineWork() {
	defer close(w.ended)
	for {
		j, ok := w.next()
		if !ok {
			return
		}
		s := &j.queue.slots[j.slot]
		err := j.queue.device.wait(s)
		w.mu.Lock() // orders this before result
		s.err = err
		w.mu.Unlock()
		j.queue.completions.push(j.slot)
	}
}

// result returns what came of a slot that the worker has given back.
func (w *worker) result(s *slot) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.err
}

// close ends the goroutine. No queue is open.
func (w *worker) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.work.Signal()
	<-w.ended
}

// wait does for a slot what may wait for the cluster.
func (d *Device) wait(s *slot) error {
	if s.r.Op == block.Status {
		return d.describe(s.r)
	}
	if s.err != nil {
		return d.latch.Fail(s.err) // a flush that failed
	}
	return d.latch.Err()
}

// describe answers a Status.
func (d *Device) describe(r *block.Request) error {
	extents, err := d.connection.extents(r.Offset, r.Length, make([]extent, 0, max(cap(r.Extents), 1)))
	switch errno, _ := err.(syscall.Errno); {
	case errno == syscall.EILSEQ:
		r.AddExtent(r.Length, 0)
		return nil
	case err != nil:
		return d.failed(r, errno)
	}
	for _, e := range extents {
		flags := block.Hole | block.Zero
		if e.data {
			flags = 0
		}
		if !r.AddExtent(e.length, flags) {
			break
		}
	}
	return nil
}
