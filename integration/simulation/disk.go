package simulation

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// disk is a medium as a process of a target has it open.
type disk struct {
	process *Process
	files   *descriptors
	fd      int
	medium  *medium
	referee *Referee
	latch   block.Latch
	queues  []*diskQueue // that are open
	closed  bool
}

// openDisk opens the medium of a descriptor, which it owns.
func openDisk(p *Process, files *descriptors, fd int, r *Referee) *disk {
	m := files.open[fd].medium
	m.open()
	d := &disk{process: p, files: files, fd: fd, medium: m, referee: r}
	d.latch.Lost = func(error) { m.lose(); r.lost(m) }
	p.onKill = append(p.onKill, d.die)
	return d
}

// Info implements [block.Device], as do NewQueue and Close.
func (d *disk) Info() block.Info {
	return block.Info{
		Size: int64(len(d.medium.present)) * blockSize, MinimumBlock: blockSize, PreferredBlock: blockSize, MaximumPayload: 1 << 20,
		Features: block.CanFlush | block.CanFUA | block.CanTrim | block.CanWriteZeroes | block.CanMultiConn,
	}
}

// NewQueue opens a queue.
func (d *disk) NewQueue(depth int) (block.Queue, error) {
	q := &diskQueue{disk: d, depth: depth, file: d.process.scheduler.newFile(d.process)}
	d.queues = append(d.queues, q)
	return q, nil
}

// Close flushes and leaves the medium clean, if nothing was lost. A volatile
// cache is not flushed.
func (d *disk) Close() error {
	if n := len(d.queues); n > 0 {
		d.process.scheduler.fail("%s: %d queues of a closed disk are open", d.process.name, n)
	}
	err := d.latch.Err()
	if err == nil && d.medium.failed != 0 {
		err = d.latch.Fail(d.medium.failed)
	}
	if err == nil {
		if !d.medium.volatile {
			d.medium.flush()
		}
		d.medium.unclean = false
	}
	d.end()
	d.files.close(d.fd)
	return err
}

// Durability implements [block.DurabilityReporter].
func (d *disk) Durability() block.Durability {
	if d.medium.volatile {
		return block.FlushedOnly
	}
	return block.OutlivesProcess
}

// end ends the use of the disk, and a volatile cache.
func (d *disk) end() {
	if d.closed {
		return
	}
	if d.closed = true; d.medium.volatile {
		d.medium.forget()
		d.referee.rebooted(d.medium)
	}
}

// Identity implements [block.Identified].
func (d *disk) Identity() block.Identity { return identity{d} }

// identity is the record of a medium.
type identity struct{ disk *disk }

func (i identity) UUID() [16]byte       { return i.disk.medium.uuid }
func (i identity) Verifier() uint64     { return i.disk.medium.losses }
func (i identity) Persistent() bool     { return true }
func (i identity) Writer() block.Writer { return i.disk.medium.lastWrite }

// SetWriter keeps the writer, which takes time.
func (i identity) SetWriter(id [16]byte) (block.Writer, error) {
	d := i.disk
	d.process.scheduler.block(between(d.medium.random, 0, time.Millisecond))
	d.medium.lastWrite = block.Writer{ID: id, Generation: d.medium.lastWrite.Generation + 1}
	return d.medium.lastWrite, nil
}

// die is the end of the process: the kernel finishes some of the requests.
func (d *disk) die() {
	for _, q := range d.queues {
		for _, x := range q.running {
			d.process.scheduler.timers.unset(&x.timer)
			if d.medium.random.Uint32()&1 == 0 {
				x.execute()
			}
			x.end()
		}
	}
	d.queues = nil
	d.end()
}

// diskQueue is a queue of a disk.
type diskQueue struct {
	disk      *disk
	depth     int
	file      *file
	submitted []*block.Request
	running   []*execution
	done      []*block.Request
	armed     bool
	idle      waiters
}

// execution is a request in the disk.
type execution struct {
	queue   *diskQueue
	request *block.Request
	moved   int64 // bytes that are in their place
	timer   timer
}

// execution returns one that has ended.
func (r *Runner) execution() *execution {
	if k := len(r.executions); k > 0 {
		x := r.executions[k-1]
		r.executions = r.executions[:k-1]
		return x
	}
	x := new(execution)
	x.timer.call = x.proceed
	return x
}

// end gives the execution back. Its timer is not set.
func (x *execution) end() {
	r := x.queue.disk.process.scheduler.runner
	x.queue, x.request = nil, nil
	r.executions = append(r.executions, x)
}

// Reserve implements [block.Queue], as do the other methods of diskQueue with
// capitals. The disk has no memory of its own.
func (q *diskQueue) Reserve(r *block.Request) bool {
	r.Data = q.disk.process.scheduler.runner.memory.get(int(r.Length))
	r.Memory = 1
	return true
}

// Release gives memory back.
func (q *diskQueue) Release(r *block.Request) {
	if r.Memory != 0 {
		q.disk.process.scheduler.runner.memory.put(r.Data)
		r.Data, r.Memory = nil, 0
	}
}

// Submit takes a request.
func (q *diskQueue) Submit(r *block.Request) bool {
	if len(q.submitted)+len(q.running)+len(q.done) >= q.depth {
		return false
	}
	q.submitted = append(q.submitted, r)
	return true
}

// Kick starts what was submitted.
func (q *diskQueue) Kick() {
	s, m := q.disk.process.scheduler, q.disk.medium
	for _, r := range q.submitted {
		x := s.runner.execution()
		x.queue, x.request, x.moved = q, r, 0
		q.running = append(q.running, x)
		s.set(&x.timer, m.delay(s.now))
	}
	clear(q.submitted)
	q.submitted = q.submitted[:0]
}

// delay returns how long a step of a request takes.
func (m *medium) delay(now time.Duration) time.Duration {
	most := m.speed
	if m.slow > 0 && m.random.IntN(slowOnes) == 0 {
		most = m.slow
	}
	return max(between(m.random, 0, most), m.stuck-now)
}

// proceed does the next step of a request: some of its blocks, then the others,
// then the answer.
func (x *execution) proceed() {
	q, r := x.queue, x.request
	m, s := q.disk.medium, q.disk.process.scheduler
	if m.stuck > s.now {
		s.set(&x.timer, m.delay(s.now))
		return
	}
	if n := r.Length / blockSize; r.Op != block.Flush && n > 1 && x.moved == 0 && m.random.Uint32()&3 == 0 {
		x.move(blockSize * (1 + m.random.Int64N(n-1)))
		s.set(&x.timer, m.delay(s.now))
		return
	}
	x.execute()
	s.trace.add(uint64(r.Op)<<32|uint64(r.Offset), uint64(s.now))
	i := slices.Index(q.running, x)
	q.running = slices.Delete(q.running, i, i+1)
	x.end()
	q.done = append(q.done, r)
	if q.armed {
		q.armed = false
		q.file.Ring()
	}
	if len(q.running) == 0 {
		q.idle.wake(s)
	}
}

// execute ends a request.
func (x *execution) execute() {
	d, r := x.queue.disk, x.request
	m := d.medium
	r.Err = nil
	durable := r.Op == block.Flush || r.Flags&block.FUA != 0
	if err := d.latch.Err(); durable && err != nil {
		r.Err = err
		return
	}
	if m.failed != 0 && (durable || m.random.Uint32()&1 == 0) {
		if r.Err = m.failed; durable {
			r.Err = d.latch.Fail(m.failed)
		}
		return
	}
	if r.Op == block.Flush {
		m.flush()
		return
	}
	if m.full && r.Op == block.Write {
		r.Err = syscall.ENOSPC
		return
	}
	x.move(r.Length)
}

// move moves the bytes of a request up to an end.
func (x *execution) move(end int64) {
	d, r := x.queue.disk, x.request
	m := d.medium
	for ; x.moved < end; x.moved += blockSize {
		b := (r.Offset + x.moved) / blockSize
		switch r.Op {
		case block.Read:
			m.present[b].fill(r.Data[x.moved:])
		case block.Write:
			t, err := tagOf(r.Data[x.moved:], b)
			if err != nil {
				d.process.scheduler.fail("a write brings bytes of another one to the disk: %v", err)
			}
			m.write(b, t, r.Flags&block.FUA != 0)
		case block.WriteZeroes, block.Trim:
			m.write(b, zero, r.Flags&block.FUA != 0)
		default:
			r.Err = fmt.Errorf("disk: %v: %w", r.Op, syscall.EINVAL)
		}
	}
}

// Reap returns what is done.
func (q *diskQueue) Reap(dst []*block.Request) int {
	q.file.Drain()
	n := copy(dst, q.done)
	q.done = slices.Delete(q.done, 0, n)
	return n
}

// Arm asks for the next completion to make the descriptor readable.
func (q *diskQueue) Arm() (time.Duration, bool) {
	q.armed = len(q.done) == 0
	return -1, q.armed
}

// FD returns the descriptor.
func (q *diskQueue) FD() int { return q.file.FD() }

// Abort drops what is not kicked, and some of what has moved nothing.
func (q *diskQueue) Abort() {
	s, m := q.disk.process.scheduler, q.disk.medium
	dropped := q.submitted
	q.submitted = nil
	q.running = slices.DeleteFunc(q.running, func(x *execution) bool {
		begun := x.moved > 0 || m.random.Uint32()&1 == 0
		if !begun {
			s.timers.unset(&x.timer)
			dropped = append(dropped, x.request)
			x.end()
		}
		return !begun
	})
	for _, r := range dropped {
		r.Err = syscall.ECANCELED
	}
	q.done = append(q.done, dropped...)
}

// Close waits for what is in the disk.
func (q *diskQueue) Close() error {
	q.Abort()
	for len(q.running) > 0 {
		q.disk.process.scheduler.block(-1, &q.idle)
	}
	q.disk.queues = slices.DeleteFunc(q.disk.queues, func(o *diskQueue) bool { return o == q })
	return q.file.Close()
}
