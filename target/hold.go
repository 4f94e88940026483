package target

import (
	"errors"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// Data that moves between a peer and the disk itself goes past the backend's queue,
// so the connection holds its range from before the first byte until after the last.
// How long that takes is partly the peer's affair. Therefore nothing here waits for a
// range: what is taken goes through the queue, which does. And a connection whose
// peer makes no progress while others may wait for it comes to its end: see
// beatHolding.

// hold begins to use the disk itself for a request. It returns false if the range is
// taken.
func (c *conn) hold(r *request) bool {
	if !r.handle.queue.ranges.TryAcquire(r.block.Offset, r.block.Length, r.block.Op != block.Read) {
		c.stats.RangesTaken++
		return false
	}
	r.holds = true
	c.holding++
	return true
}

// letGo ends the use of the disk itself, if the request has begun it.
func (c *conn) letGo(r *request) {
	if !r.holds {
		return
	}
	r.holds = false
	c.holding--
	c.moved = true
	r.handle.queue.ranges.Release(r.block.Offset, r.block.Length, r.block.Op != block.Read)
}

// pullsWhole reports whether a Write may be pulled straight to its place in memory
// that is the disk. A connection may end between any two steps of a pull, and then
// every block has to be as it was or as it was to be: the provider has to copy
// itself, in steps that are whole blocks.
func (q *exportQueue) pullsWhole(cmd *wire.Command) bool {
	if !q.copies || cmd.Offset%block.AtomicUnit != 0 {
		return false
	}
	for _, s := range cmd.Segments[:cmd.NumSegments-1] {
		if s.Length%block.AtomicUnit != 0 {
			return false
		}
	}
	return true
}

// A pull's steps are whole blocks, or this does not compile.
var _ = [1]struct{}{}[via.CopyStep%block.AtomicUnit]

// errHolding is why a connection ends that keeps others from parts of a disk.
var errHolding = errors.New("the initiator takes no data, and others may wait for it")

// beatSoon has an I/O connection that holds ranges look after itself as often as
// peers are listened for.
func (c *conn) beatSoon() {
	if soon := time.Now().Add(c.server.cfg.Heartbeat); c.nextBeat.After(soon) {
		c.nextBeat = soon
	}
}

// beatHolding is the beat of an I/O connection.
func (c *conn) beatHolding() {
	if c.missed++; c.moved || c.holding == 0 {
		c.missed = 0
	}
	c.moved = false
	if c.missed >= missedBeats {
		c.fail(errHolding)
	}
}
