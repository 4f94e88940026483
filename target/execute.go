package target

import (
	"fmt"
	"log/slog"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// executor owns the payload of requests and gives them to the backend. Its
// steps leave the next owner in the state of the request: awaitPull and
// awaitAnswer are the sender's.
//
//  1. start    an inline Write and requests without payload go to 4; others
//     use the disk's own memory (startDirect, startMapped) or 2
//  2. acquire  gets memory of the pool, or the request waits for resume
//  3. fill     a Write's payload has to be pulled into it; pulled comes after
//  4. submit   gives the request to the backend's queue, a Write by write,
//     which compares its digest
//  5. reap     starts what was submitted and takes what is finished
//  6. finish   takes the backend's result: the request can be answered
//  7. releaseMemory
type executor struct {
	conn        *conn
	carrier     *carrier.Carrier
	log         *slog.Logger
	pool        *regcache.Pool // nil unless the connection is for I/O
	extentBytes uint32         // the longest answer to a block-status
	awaitMemory ring.Ring[*request]
	held        heldRanges
	timer       readTimer
	stopwatch   *latency.Stopwatch // by the clock of the export table
	reaped      [64]*block.Request
	aborted     bool // the backend gets nothing any more

	errors, waitsForMemory uint64
}

// equip allocates the memory of an I/O connection.
func (x *executor) equip(pool *regcache.Pool, n int, l *login) {
	x.pool = pool
	x.extentBytes = min(l.inline, l.maxIO, wire.MaxExtentBytes) &^ (wire.ExtentSize - 1)
	x.awaitMemory = ring.New[*request](n)
}

// close releases the pool.
func (x *executor) close() error {
	if x.pool == nil {
		return nil
	}
	return x.pool.Close()
}

// start acquires the memory that the request needs and dispatches it. alone
// means that no other request is in flight.
func (x *executor) start(r *request, alone bool) error {
	cmd := &r.command
	switch {
	case cmd.InlineLength > 0:
		r.block.Data = x.carrier.Receive(r.receive).Data[:cmd.InlineLength]
		return x.write(r)
	case cmd.Opcode <= wire.OpWrite && r.handle.queue.disk != nil && x.startDirect(r):
		return nil
	case cmd.Opcode == wire.OpRead && r.handle.queue.mapping != nil && x.startMapped(r, alone):
		return nil
	case cmd.Opcode <= wire.OpWrite || cmd.Opcode == wire.OpBlockStatus:
		if x.awaitMemory.Empty() && x.acquire(r) {
			return x.fill(r)
		}
		r.state = awaitMemory
		x.waitsForMemory++
		r.countWait()
		x.awaitMemory.Push(r)
		return nil
	default:
		return x.submit(r)
	}
}

// startDirect moves the payload of a transfer between the peer and the memory
// that is the disk, without a bounce buffer. It returns false if the transfer
// has to go through the queue.
func (x *executor) startDirect(r *request) bool {
	q := r.handle.queue
	write := r.command.Opcode == wire.OpWrite
	if write && !q.pullsWhole(&r.command) || !x.held.acquire(r) {
		return false
	}
	if !q.disk.Access(r.block.Offset, r.block.Length, write) {
		x.held.release(r)
		return false
	}
	q.counts.Count(r.block.Op, uint64(r.command.Length))
	r.local = carrier.Span{Addr: q.direct.Addr() + r.command.Offset, Handle: q.direct.Handle(), Length: r.command.Length}
	r.status, r.state = wire.StatusOK, awaitAnswer
	if write {
		r.state = awaitPull
	}
	return true
}

// acquire acquires pool memory for a transfer, or for extents. It returns false
// while the pool is exhausted.
func (x *executor) acquire(r *request) bool {
	length := r.command.Length
	if r.command.Opcode == wire.OpBlockStatus {
		length = x.extentBytes
	}
	m, ok := x.pool.Get(int(length))
	if !ok {
		return false
	}
	r.memory = m
	r.local = carrier.Span{Addr: m.Addr, Handle: m.Handle, Length: length}
	return true
}

// fill dispatches a request that has its memory: a Write needs its payload
// first.
func (x *executor) fill(r *request) error {
	switch r.command.Opcode {
	case wire.OpRead:
		r.block.Data = r.memory.Data
	case wire.OpWrite:
		r.block.Data = r.memory.Data
		r.state = awaitPull
		return nil
	default:
		x.prepareStatus(r)
	}
	return x.submit(r)
}

// resume dispatches the request that waits longest for memory, and returns it,
// or nil if none can go on.
func (x *executor) resume() (*request, error) {
	if x.awaitMemory.Empty() || !x.acquire(*x.awaitMemory.First()) {
		return nil, nil
	}
	r := x.awaitMemory.Pop()
	return r, x.fill(r)
}

// pulled continues a Write whose payload is here. Payload of a direct Write is
// in its place.
func (x *executor) pulled(r *request) error {
	if !r.holdsRange {
		if x.aborted {
			x.refuse(r, wire.StatusAborted)
			return nil
		}
		if r.protection != nil {
			if err := r.protection.open(r.memory.Data); err != nil {
				x.carrier.CountForged()
				return fmt.Errorf("open payload of a write: %w", err)
			}
			x.carrier.CountSealed(len(r.memory.Data))
		}
		return x.write(r)
	}
	x.held.release(r)
	r.status, r.state = wire.StatusOK, awaitAnswer
	return nil
}

// submit gives the request to the backend.
func (x *executor) submit(r *request) error {
	r.state = running
	q := r.handle.queue
	if r.given = x.stopwatch.Now(); q.active == 0 {
		q.age.Set(r.given)
	}
	loop.MayBlock()
	if !q.queue.Submit(&r.block) {
		// The queue has one entry for each slot.
		return fmt.Errorf("backend queue of export %q is full", q.export.Name)
	}
	q.active++
	q.counts.Count(r.block.Op, uint64(r.block.Length))
	return nil
}

// reap starts what was submitted to a queue and returns what the backend
// finished, until the next call.
func (x *executor) reap(q *exportQueue) []*block.Request {
	q.queue.Kick()
	n := q.queue.Reap(x.reaped[:])
	if q.active -= n; n > 0 && q.active == 0 {
		q.age.Set(0)
	}
	return x.reaped[:n]
}

// finish takes the backend's result of a request.
func (x *executor) finish(r *request, b *block.Request) {
	status := wire.StatusOf(block.Errno(b.Err))
	if x.aborted && block.Errno(b.Err) == syscall.ECANCELED {
		status = wire.StatusAborted
	}
	if status != wire.StatusOK {
		x.countError(r, status)
		x.timer.discard()
		x.log.Debug("request failed", "event", "request_failed", "op", b.Op, "offset", b.Offset, "length", b.Length, "error", b.Err)
	} else if b.Op == block.Status {
		status = r.encodeExtents()
	}
	x.timer.recordCopy(r)
	r.status, r.state = status, awaitAnswer
}

// refuse answers a request with an error, without the backend.
func (x *executor) refuse(r *request, status wire.Status) {
	x.countError(r, status)
	r.status, r.state = status, awaitAnswer
}

// abort refuses a request that waits for memory or for its payload, and reports
// whether it did.
func (x *executor) abort(r *request) bool {
	if r.state != awaitMemory && r.state != awaitPull {
		return false
	}
	x.held.release(r)
	x.refuse(r, wire.StatusAborted)
	return true
}

// countError counts an answer with an error, for the export too if the request
// has one. A command that the initiator aborts is none.
func (x *executor) countError(r *request, status wire.Status) {
	if status == wire.StatusAborted {
		return
	}
	x.errors++
	if r.handle != nil {
		r.handle.queue.counts.Errors++
	}
}

// releaseMemory releases the request's memory: pool buffer, mapping lease or
// disk range.
func (x *executor) releaseMemory(r *request) {
	x.held.release(r)
	if r.memory.Data != nil {
		x.pool.Put(r.memory)
		r.memory = regcache.Buffer{}
	}
	r.lease.Release()
}
