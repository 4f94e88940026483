package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ring"
	"golang.org/x/sys/unix"
)

// worker moves pieces by a queue of either disk. It is of one goroutine.
type worker struct {
	*Transfer
	source, destination block.Queue
	runs                <-chan piece // of pieces; nil when there are no more
	run                 piece        // what is left of the last one

	jobs   []job
	free   ring.Ring[int]
	order  ring.Ring[int] // jobs as their pieces came; with a digest alone
	reaped []*block.Request
}

// job is a piece in flight. A request's User is the index of its job.
type job struct {
	piece
	requests [2]block.Request // of the source, of the destination
	memory   [2][]byte        // for the data of each; of full length
	waiting  int              // requests in flight
	writing  bool             // they are writes
	counter  *atomic.Int64    // of what is written
	ready    bool             // read, and waits for its place in the digest
}

// work moves pieces until there are no more, then flushes.
func (t *Transfer) work(ctx context.Context, runs <-chan piece) (err error) {
	w := &worker{
		Transfer: t, runs: runs, jobs: make([]job, t.config.Depth),
		free: ring.New[int](t.config.Depth), order: ring.New[int](t.config.Depth),
		reaped: make([]*block.Request, t.config.Depth),
	}
	for i := range w.jobs {
		w.free.Push(i)
	}
	for _, side := range []struct {
		Side
		queue *block.Queue
	}{{t.config.Source, &w.source}, {t.config.Destination, &w.destination}} {
		q, err := side.Device.NewQueue(t.config.Depth)
		if err != nil {
			return fmt.Errorf("%s: %w", side.Name, err)
		}
		defer func() { err = errors.Join(err, q.Close()) }()
		*side.queue = q
	}
	for {
		if err := w.begin(ctx); err != nil {
			return err
		}
		if w.idle() {
			return w.flush(ctx)
		}
		w.source.Kick()
		w.destination.Kick()
		progress, err := w.reap()
		if err != nil {
			return err
		}
		if !progress {
			sleep(w.wake, w.source, w.destination)
		}
	}
}

// idle reports whether no job has a piece.
func (w *worker) idle() bool { return w.free.Len() == len(w.jobs) }

// begin begins pieces while there are any and jobs for them. It waits for a run
// only if nothing else is to do.
func (w *worker) begin(ctx context.Context) error {
	for !w.free.Empty() {
		if w.run.length == 0 && !w.receiveRun(ctx) {
			break
		}
		p := w.run
		p.length = cut(p, w.limit(p))
		w.run.off, w.run.length = w.run.off+p.length, w.run.length-p.length
		i := w.free.Pop()
		if w.config.Digest != nil {
			w.order.Push(i)
		}
		if err := w.read(i, p); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// receiveRun receives the next run. It returns false if there is none now, and
// after the end of ctx.
func (w *worker) receiveRun(ctx context.Context) bool {
	if w.runs == nil || ctx.Err() != nil {
		return false
	}
	ok := false
	if w.idle() {
		select {
		case w.run, ok = <-w.runs:
		case <-ctx.Done():
			return false
		}
	} else {
		select {
		case w.run, ok = <-w.runs:
		default:
			return false
		}
	}
	if !ok {
		w.runs = nil
	}
	return ok
}

// read reads what has to be known of a piece.
func (w *worker) read(i int, p piece) error {
	j := &w.jobs[i]
	j.piece, j.writing = p, false
	if !p.sourceZero {
		if err := w.transfer(i, 0, block.Read); err != nil {
			return err
		}
	}
	compared := w.config.Mode == Compare || w.config.Mode == Resume && !p.sourceZero
	if compared && !p.destinationZero {
		if err := w.transfer(i, 1, block.Read); err != nil {
			return err
		}
	}
	if j.waiting == 0 {
		return w.handle(i)
	}
	return nil
}

// side returns a disk by its index, and the queue of it.
func (w *worker) side(index int) (Side, block.Queue) {
	if index == 0 {
		return w.config.Source, w.source
	}
	return w.config.Destination, w.destination
}

// transfer submits a read of a disk into the job's memory for it, or a write
// of the source's data.
func (w *worker) transfer(i, index int, op block.Op) error {
	j := &w.jobs[i]
	from := index
	if op == block.Write {
		from = 0
	}
	if j.memory[from] == nil {
		j.memory[from] = make([]byte, w.length)
	}
	return w.submit(i, index, block.Request{Op: op, Data: j.memory[from][:j.length]})
}

// submit submits a request for the range of a job.
func (w *worker) submit(i, index int, r block.Request) error {
	j := &w.jobs[i]
	r.Offset, r.Length, r.User = j.off, j.length, uint64(i)
	j.requests[index] = r
	side, q := w.side(index)
	if !q.Submit(&j.requests[index]) {
		j.requests[index].Err = unix.EBUSY // which is a bug: it has room for all jobs
		return failed(side, &j.requests[index])
	}
	j.waiting++
	return nil
}

// reap handles the requests that have finished. It reports whether there were
// any.
func (w *worker) reap() (progress bool, err error) {
	for index := range 2 {
		side, q := w.side(index)
		n := q.Reap(w.reaped)
		for _, r := range w.reaped[:n] {
			if r.Err != nil {
				return true, failed(side, r)
			}
			i := int(r.User)
			j := &w.jobs[i]
			if j.waiting--; j.waiting > 0 {
				continue
			}
			if j.writing {
				w.finish(i)
			} else if err := w.handle(i); err != nil {
				return true, err
			}
		}
		progress = progress || n > 0
	}
	return progress, nil
}

// handle handles a job whose piece is read: at once, or at its place in the
// digest.
func (w *worker) handle(i int) error {
	if w.config.Digest == nil {
		return w.apply(i)
	}
	w.jobs[i].ready = true
	for !w.order.Empty() && w.jobs[*w.order.First()].ready {
		k := w.order.Pop()
		w.jobs[k].ready = false
		w.digest(&w.jobs[k])
		if err := w.apply(k); err != nil {
			return err
		}
	}
	return nil
}

// apply does with a piece what the mode wants.
func (w *worker) apply(i int) error {
	j := &w.jobs[i]
	switch {
	case w.config.Mode == Compare:
		w.compare(j)
	case j.sourceZero:
		return w.clear(i)
	case w.config.Mode == Resume && !j.destinationZero && bytes.Equal(j.data(0), j.data(1)):
		w.counts.same.Add(j.length)
	case !w.config.Allocate && isZero(j.data(0)):
		return w.clear(i)
	default:
		j.writing, j.counter = true, &w.counts.copied
		return w.transfer(i, 1, block.Write)
	}
	w.free.Push(i)
	return nil
}

// clear has the destination read as zeroes.
func (w *worker) clear(i int) error {
	j := &w.jobs[i]
	if j.destinationZero {
		w.counts.same.Add(j.length)
		w.free.Push(i)
		return nil
	}
	j.writing, j.counter = true, &w.counts.zeroed
	if w.zeroes != nil {
		return w.submit(i, 1, block.Request{Op: block.Write, Data: w.zeroes[:j.length]})
	}
	r := block.Request{Op: block.WriteZeroes}
	if w.config.Allocate {
		r.Flags = block.NoHole
	}
	return w.submit(i, 1, r)
}

// finish ends a piece that is written.
func (w *worker) finish(i int) {
	j := &w.jobs[i]
	j.counter.Add(j.length)
	if j.counter == &w.counts.copied {
		w.writeBack.add(j.length)
	}
	w.free.Push(i)
}

// flush makes durable what the queue wrote.
func (w *worker) flush(ctx context.Context) error {
	d := w.config.Destination
	if w.config.Mode == Compare || d.Device.Info().Features&block.CanFlush == 0 {
		return nil
	}
	r := &block.Request{Op: block.Flush}
	if err := (&asker{w.destination, w.wake}).do(ctx, r); err != nil {
		return err
	}
	if r.Err != nil {
		return failed(d, r)
	}
	return nil
}
