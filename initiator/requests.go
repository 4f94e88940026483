package initiator

import (
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/regcache"
)

// op is a request in flight. The queue cuts a request that exceeds the target's
// limit for one command into several.
//
// A request without payload may be longer than a command. Its commands go out
// one at a time, each a piece that holds its range for itself; the queue does
// not resend what was answered.
type op struct {
	request *block.Request
	base    int64  // begin of the piece; the bytes before it are answered
	end     int64  // of the piece; the request's length if it is one piece
	cut     int64  // bytes of the request that are in commands
	pending int    // commands without an answer
	err     error  // the first
	again   bool   // a command was refused because the target goes down
	mark    uint64 // of a Flush: writes that it covers
	barred  int    // commands whose memory is detained
	corrupt int    // times that a digest refused payload of it

	// For a request in memory of the caller's.
	piece  int64 // end of the range that choice is for
	choice regcache.Choice
	began  time.Time // when choice was made, if the whole is timed
}

// nextPiece begins the next piece.
func (o *op) nextPiece() {
	o.base = o.end
	if o.end = o.request.Length; o.end-o.base > maxRange {
		at := o.request.Offset + o.base
		o.end = o.base + maxRange - at%maxRange
	}
	o.cut = o.base
}

// requestTable owns the requests of a queue, from Submit to Reap.
type requestTable struct {
	ops      []op // requests in flight
	overlaps *overlaps
	free     []uint16
	waiting  ring.Ring[uint16] // requests that are not wholly cut into commands yet
	finished ring.Ring[*block.Request]
	held     int    // requests submitted and not reaped
	alone    bool   // the request submitted last has had the queue for itself
	errors   uint64 // requests that failed
	counts   block.Counts
}

func newRequestTable(depth int, ranges *block.Ranges) requestTable {
	t := requestTable{ops: make([]op, depth), overlaps: newOverlaps(ranges, depth), waiting: ring.New[uint16](depth), finished: ring.New[*block.Request](depth)}
	for i := depth - 1; i >= 0; i-- {
		t.free = append(t.free, uint16(i))
	}
	return t
}

// add takes a request, or returns false if there are as many as the depth.
func (t *requestTable) add(r *block.Request) (uint16, *op, bool) {
	if t.held == len(t.ops) {
		return 0, nil, false
	}
	t.held++
	k := len(t.free) // > 0: an op is free again before its request is reaped
	i := t.free[k-1]
	t.free = t.free[:k-1]
	o := &t.ops[i]
	*o = op{request: r}
	o.nextPiece()
	t.alone = t.held == 1
	r.Token, r.Err = uint64(i), nil
	t.counts.Count(r.Op, uint64(r.Length))
	return i, o, true
}

// finish completes a request.
func (t *requestTable) finish(i uint16) {
	o := &t.ops[i]
	r := o.request
	r.Err = o.err
	if o.err != nil {
		t.errors++
	}
	t.overlaps.release(i)
	*o = op{}
	t.free = append(t.free, i)
	t.finished.Push(r)
}

// reap returns completed requests.
func (t *requestTable) reap(dst []*block.Request) int {
	n := t.finished.PopInto(dst)
	t.held -= n
	return n
}

// othersWait reports whether requests wait beside one, which may be the first
// of those that wait for memory.
func (t *requestTable) othersWait(i uint16) bool {
	n := t.waiting.Len()
	if n > 0 && *t.waiting.First() == i {
		n--
	}
	return n > 0 || t.overlaps.blocked > 0
}

// inFlight returns how many requests are not finished.
func (t *requestTable) inFlight() int { return len(t.ops) - len(t.free) }

// abandon fails all requests; one that waits for its range, when it has it, and
// one whose memory is detained, when that is free.
func (t *requestTable) abandon() {
	t.waiting.Clear()
	for i := range t.ops {
		if o := &t.ops[i]; o.request != nil {
			o.err = syscall.EIO
			if !t.overlaps.waiting(uint16(i)) && o.barred == 0 {
				t.finish(uint16(i))
			}
		}
	}
}

// discardUnsent ends the requests of which no command is in flight, and has the
// others end with their last answer. One that waits for its range ends when it
// has it.
func (t *requestTable) discardUnsent() {
	t.waiting.Clear()
	for i := range t.ops {
		o := &t.ops[i]
		if o.request == nil || o.cut >= o.request.Length && o.pending > 0 {
			continue
		}
		if o.err == nil {
			o.err = syscall.ECANCELED
			if o.cut > 0 || o.barred > 0 {
				o.err = syscall.EIO // a part has begun
			}
		}
		o.cut, o.end = o.request.Length, o.request.Length
		if o.pending == 0 && o.barred == 0 && !t.overlaps.waiting(uint16(i)) {
			t.finish(uint16(i))
		}
	}
}

// requeue makes all requests wait, to be sent from the begin of their piece.
func (t *requestTable) requeue() {
	t.waiting.Clear()
	for i := range t.ops {
		if o := &t.ops[i]; o.request != nil && !t.overlaps.waiting(uint16(i)) {
			r := o.request
			r.Extents = r.Extents[:0]
			*o = op{request: r, base: o.base, end: o.end, cut: o.base, mark: o.mark, barred: o.barred, corrupt: o.corrupt, err: o.failed()}
			if o.barred == 0 {
				t.waiting.Push(uint16(i))
			}
		}
	}
}

// bar makes a request wait for memory of one of its commands.
func (t *requestTable) bar(i uint16) { t.ops[i].barred++ }

// unbar undoes bar. A request with all of its memory is resent, from the begin
// of its piece, or fails.
func (t *requestTable) unbar(i uint16) {
	o := &t.ops[i]
	if o.barred--; o.barred != 0 {
		return
	}
	if o.err != nil {
		t.finish(i)
	} else {
		t.waiting.Push(i)
	}
}

// failed returns the error of a request that only waits for its memory.
func (o *op) failed() error {
	if o.barred == 0 {
		return nil
	}
	return o.err
}
