package target

import (
	"errors"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// A direct transfer between a peer and the disk bypasses the backend's queue,
// so the connection holds its range from before the first byte until after the
// last. The peer can delay that. Therefore a connection never waits for a
// range: if the range is busy, the request goes through the queue, which waits.
// A connection whose peer makes no progress while it holds a range is closed:
// see heldRanges.stuck.

// heldRanges are the disk ranges that a connection holds for direct transfers.
type heldRanges struct {
	count    int    // requests that hold their range
	released bool   // one was released since the last check
	life     uint64 // of the fabric, at the last check
	missed   int    // checks in a row without a released range, or a packet
	slow     int    // checks in a row without a released range, in slowParts
	taken    uint64 // transfers through the queue: their range was busy
}

// acquire acquires the range of a direct transfer. It returns false if the
// range is busy.
func (h *heldRanges) acquire(r *request) bool {
	if !r.handle.queue.ranges.TryAcquire(r.block.Offset, r.block.Length, r.block.Op != block.Read) {
		h.taken++
		r.countWait()
		return false
	}
	r.holdsRange = true
	h.count++
	return true
}

// release releases the range of a direct transfer, if the request holds one.
func (h *heldRanges) release(r *request) {
	if !r.holdsRange {
		return
	}
	r.holdsRange = false
	h.count--
	h.released = true
	r.handle.queue.ranges.Release(r.block.Offset, r.block.Length, r.block.Op != block.Read)
}

// Checks of a connection that holds ranges.
const (
	maxHeld     = 5   // in a row without a packet of the peer
	maxHeldSlow = 240 // in a row without a released range, whatever the peer sends

	// slowParts are those of a check on a fast line. One on a slow line has
	// less: what a transfer had to bear counts, also once the line is fast.
	slowParts = 1 << 20

	// A transfer on a slow line may wait for so many rounds of all others.
	roundsInAnswer = 4
)

// stuck is the periodic check of an I/O connection, when the life of the fabric
// is life and an answer takes so long. It reports whether the peer has made no
// progress for maxHeld checks while a range was held, or too little for
// maxHeldSlow. On a slow line both are longer, as the silence of a peer is.
func (h *heldRanges) stuck(life uint64, interval, answer time.Duration) bool {
	held := carrier.SilentIntervals(maxHeld, interval, roundsInAnswer*answer)
	h.missed++
	h.slow += maxHeld * slowParts / held
	switch {
	case h.released || h.count == 0:
		h.missed, h.slow = 0, 0
	case life != h.life:
		h.missed = 0
	}
	h.released, h.life = false, life
	return h.missed >= held || h.slow >= maxHeldSlow*slowParts
}

// pullsWhole reports whether a Write may be pulled straight to its place in
// memory that is the disk. A connection may end between any two steps of a
// pull, and then every block has to be as it was or as it was to be: the
// provider has to copy itself, in steps that are whole blocks.
func (q *exportQueue) pullsWhole(cmd *wire.Command) bool {
	if !q.copies || cmd.Offset%block.AtomicUnit != 0 {
		return false
	}
	left := cmd.Length // the last segment may end anywhere
	for _, s := range cmd.Segments[:cmd.NumSegments] {
		if left -= s.Length; left > 0 && s.Length%block.AtomicUnit != 0 {
			return false
		}
	}
	return left == 0 && cmd.Length > 0
}

// A pull's steps are whole blocks, or this does not compile.
var _ = [1]struct{}{}[via.CopyStep%block.AtomicUnit]

// errRangeHeld ends a connection that blocks a range without progress.
var errRangeHeld = errors.New("the initiator takes no data, and others may wait for it")
