package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// start gets the memory that the request needs and sends it on: a Write in the
// message and what has no payload go to the backend at once.
func (c *conn) start(r *request) {
	cmd := &r.command
	switch {
	case cmd.InlineLength > 0:
		r.block.Data = c.carrier.Receive(r.receive).Data[:cmd.InlineLength]
		c.submit(r)
	case cmd.Opcode <= wire.OpWrite && r.handle.queue.direct != nil && c.startDirect(r):
	case cmd.Opcode == wire.OpRead && r.handle.queue.windows != nil && c.startWindow(r):
	case cmd.Opcode <= wire.OpWrite || cmd.Opcode == wire.OpBlockStatus:
		if !c.awaitMemory.empty() || !c.takeMemory(r) {
			r.state = awaitMemory
			c.stats.WaitsForMemory++
			c.awaitMemory.push(r.slot - c.base)
		}
	default:
		c.submit(r)
	}
}

// startDirect moves the payload of a transfer between the peer and the memory
// that is the disk, without a stop in between. It returns false if the transfer has
// to go through the queue.
func (c *conn) startDirect(r *request) bool {
	q := r.handle.queue
	if r.command.Opcode == wire.OpWrite && !q.pullsWhole(&r.command) || !c.hold(r) {
		return false
	}
	c.stats.Count(r.block.Op, uint64(r.command.Length))
	r.local = carrier.Span{Addr: q.direct.Addr() + r.command.Offset, Handle: q.direct.Handle(), Length: r.command.Length}
	if r.command.Opcode == wire.OpRead {
		c.settle(r, wire.StatusOK)
	} else {
		c.pullOrWait(r)
	}
	return true
}

// takeMemory gets pool memory for a transfer, or for extents, and goes on. It returns false while
// there is none.
func (c *conn) takeMemory(r *request) bool {
	length := r.command.Length
	if r.command.Opcode == wire.OpBlockStatus {
		length = c.extentBytes()
	}
	m, ok := c.pool.Get(int(length))
	if !ok {
		return false
	}
	r.memory = m
	r.local = carrier.Span{Addr: m.Addr, Handle: m.Handle, Length: length}
	switch r.command.Opcode {
	case wire.OpRead:
		r.block.Data = m.Data
		c.submit(r)
	case wire.OpWrite:
		r.block.Data = m.Data
		c.pullOrWait(r)
	default:
		c.prepareStatus(r)
		c.submit(r)
	}
	return true
}

// pullOrWait pulls a Write's payload, now or when its turn for sends comes.
func (c *conn) pullOrWait(r *request) {
	if !c.awaitSends.empty() || !c.pull(r) {
		r.state = awaitPull
		c.awaitSends.push(r.slot - c.base)
	}
}

// pull fetches a Write's payload by RDMA Read, a read for each segment. It
// returns false while there are not enough sends.
func (c *conn) pull(r *request) bool {
	n := int(r.command.NumSegments)
	if c.carrier.FreeSends() < n {
		c.stats.WaitsForSends++
		return false
	}
	r.state = pulling
	off := uint32(0)
	for _, s := range r.command.Segments[:n] {
		send := c.carrier.TakeSend()
		send.User, send.Step = uint32(r.slot-c.base), stepRequest
		r.pending++
		if err := c.carrier.StageRead(send, r.span(off, s.Length), s.Addr, s.Handle); err != nil {
			c.fail(fmt.Errorf("stage rdma read: %w", err))
			return true
		}
		off += s.Length
	}
	c.stats.BytesPulled += uint64(r.command.Length)
	return true
}

// submit gives the request to the backend.
func (c *conn) submit(r *request) {
	r.state = running
	q := r.handle.queue
	if !q.queue.Submit(&r.block) {
		// The queue is as deep as the slots are many.
		c.fail(fmt.Errorf("backend queue of export %q is full", q.export.Name))
		return
	}
	q.active++
	c.stats.Count(r.block.Op, uint64(r.block.Length))
}

// reap starts what was submitted and answers what the backend finished.
func (c *conn) reap(q *exportQueue) bool {
	q.queue.Kick()
	n := q.queue.Reap(c.reaped[:])
	for _, b := range c.reaped[:n] {
		q.active--
		c.finish(&c.requests[b.User], b)
	}
	return n > 0
}

// finish takes a request back from the backend: a held receive goes back before
// the answer leaves.
func (c *conn) finish(r *request, b *block.Request) {
	status := wire.StatusOf(block.Errno(b.Err))
	if status != wire.StatusOK {
		c.stats.Errors++
		c.disturbed()
		c.log.Debug("request failed", "op", b.Op, "offset", b.Offset, "length", b.Length, "error", b.Err)
	} else if b.Op == block.Status {
		status = r.encodeExtents()
	}
	c.fetched(r)
	c.settle(r, status)
}

// refuse answers a request that never got to the backend.
func (c *conn) refuse(r *request, status wire.Status) {
	c.stats.Errors++
	c.settle(r, status)
}

// settle gives back a held receive and answers.
func (c *conn) settle(r *request, status wire.Status) {
	if r.held {
		r.held = false
		c.repost(c.carrier.Receive(r.receive))
	}
	r.status = status
	if !c.awaitSends.empty() || !c.answer(r) {
		r.state = awaitAnswer
		c.awaitSends.push(r.slot - c.base)
	}
}

// retry lets the requests go on that waited for memory or sends, in order: none
// overtakes, so none starves.
func (c *conn) retry() {
	c.answerBeat()
	for !c.awaitMemory.empty() && c.takeMemory(&c.requests[c.awaitMemory.first()]) {
		c.awaitMemory.pop()
	}
	for !c.awaitSends.empty() {
		r := &c.requests[c.awaitSends.first()]
		if ok := r.state == awaitPull && c.pull(r) || r.state == awaitAnswer && c.answer(r); !ok {
			return
		}
		c.awaitSends.pop()
	}
}
