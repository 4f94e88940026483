package simulation

import (
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Referee knows what every client did and saw, and what happened to the disk.
// It fails the run when no correct disk explains that.
type Referee struct {
	scheduler *Scheduler
	blocks    []blockRecord
	devices   []*deviceRecord
	answered  []*access     // writes, and no flush after them
	since     time.Duration // of what is recorded: the last reboot
	samples   bool          // porcupine checks the record too
	disturbed bool          // a fault has happened
	flips     bool          // a request may fail whose payload is corrupt each time
	wasFull   bool
	drained   *drained                         // nil: other things than drains happen
	hasFailed bool                             // the disk has failed requests
	requests  int                              // that ended
	note      func(text string, values ...any) // nil: none
}

// deviceRecord is a device that a client has attached.
type deviceRecord struct {
	number   int // from 1
	writer   bool
	alone    bool          // no other may have the disk
	reopens  bool          // goes on when others wrote
	forever  bool          // waits for its target without a limit
	asked    time.Duration // when its client asked for it
	opened   time.Duration
	opening  bool // its client does not know yet that it is open
	preempts bool // while it is opening
	leaving  bool // is being closed by its client
	closed   bool // by its client, or killed

	// lost is when the device lost what it relies on: writes that were answered,
	// the disk, or its place as the writer. No later request may succeed.
	lost  time.Duration
	why   string
	flush time.Duration // no Flush that begins later may succeed; 0: none was lost
	stale bool          // a flush has failed since it was opened: its verifier is old

	excuse  string // why the device may be refused
	pending int    // writes without an answer
	dirty   int    // answered writes that are not promised
}

// operation is a request of a client.
type operation struct {
	device   *deviceRecord
	request  *block.Request
	began    time.Duration
	accesses []*access
}

func newReferee(s *Scheduler, blocks int) *Referee {
	return &Referee{scheduler: s, blocks: make([]blockRecord, blocks)}
}

// opening records a device that a client asks for. From now on the target may
// have opened it.
func (r *Referee) opening(writer, forever bool) *deviceRecord {
	d := &deviceRecord{number: len(r.devices) + 1, writer: writer, forever: forever, asked: r.scheduler.now, opening: true}
	for _, other := range r.devices {
		if other.opening && other.preempts && !other.closed {
			d.excuse = "another client preempts it"
		}
	}
	r.devices = append(r.devices, d)
	return d
}

// attached records that a client has its device. The requests in flight of a
// dead device have taken effect, or never will, once another writer is let in.
func (r *Referee) attached(d *deviceRecord, preempts bool) {
	now := r.scheduler.now
	d.opened, d.opening = now, false
	r.shared(d, preempts)
	if d.writer {
		for i := range r.blocks {
			for _, a := range r.blocks[i].accesses {
				if a.write && a.device.closed && a.ended == never {
					a.ended, a.lost = now, true
				}
			}
		}
		for _, other := range r.devices {
			switch {
			case !preempts || !other.writer || other == d:
			case !other.opening && other.opened <= d.asked:
				other.conflict(now, "another client preempted it")
			default: // it may have the disk since, and its client learns this late
				other.excuse = "another client preempted it"
			}
		}
	}
}

// preempting records an attempt to preempt the others. It may succeed although
// the client that made it never learns that.
func (r *Referee) preempting(alone bool) {
	for _, d := range r.devices {
		if (d.writer || alone || d.alone) && d.excuse == "" {
			d.excuse = "another client preempts it"
		}
	}
}

// shared checks that a device that was attached may have the disk together with
// the others. After a fault the target may have given up one of them.
func (r *Referee) shared(d *deviceRecord, preempts bool) {
	for _, other := range r.devices {
		if other == d || other.opening || other.leaving || other.closed || other.lost > 0 || preempts || r.disturbed || other.excuse != "" {
			continue
		}
		if d.alone || other.alone || d.writer && other.writer {
			r.scheduler.fail("devices %d and %d have the disk together", other.number, d.number)
		}
	}
}

// conflict records that another client writes.
func (d *deviceRecord) conflict(now time.Duration, why string) {
	if d.reopens {
		d.excuse = why
		return
	}
	d.lose(now, why)
}

// lose records that no later request may succeed, and that the device may be
// refused. A device that is opening may be older than the loss or not.
func (d *deviceRecord) lose(now time.Duration, why string) {
	if d.lost == 0 && !d.opening {
		d.lost, d.why = now, why
	}
	d.excuse = why
}

// begin records a request that is being submitted.
func (r *Referee) begin(o *operation, d *deviceRecord, q *block.Request) {
	*o = operation{device: d, request: q, began: r.scheduler.now, accesses: o.accesses[:0]}
	if q.Op != block.Write && q.Op != block.WriteZeroes && q.Op != block.Trim {
		return
	}
	for at := int64(0); at < q.Length; at += blockSize {
		a := r.scheduler.runner.accesses.get()
		*a = access{write: true, device: d, began: o.began, ended: never}
		b := (q.Offset + at) / blockSize
		if q.Op == block.Write {
			a.tag, _ = tagOf(q.Data[at:], b)
		}
		o.accesses = append(o.accesses, a)
		r.blocks[b].accesses = append(r.blocks[b].accesses, a)
	}
	r.drained.begin(o.accesses)
	d.pending++
	if d.stale && d.excuse == "" {
		d.excuse = "it wrote after a flush failed"
	}
	for _, other := range r.devices {
		if other != d && other.writer && other.excuse == "" {
			other.excuse = "another client wrote"
		}
	}
}

// end records the answer of a request.
func (r *Referee) end(o *operation) {
	q, d, s := o.request, o.device, r.scheduler
	r.requests++
	s.trace.add(uint64(q.Op)<<56^uint64(q.Offset)<<16^uint64(block.Errno(q.Err)), uint64(s.now))
	if len(o.accesses) > 0 {
		d.pending--
	}
	if q.Err != nil {
		r.explain(o)
		return
	}
	if d.lost > 0 && o.began > d.lost {
		s.fail("%v of device %d succeeds although %s at %v", q.Op, d.number, d.why, d.lost)
	}
	switch q.Op {
	case block.Read:
		r.read(o)
	case block.Flush:
		r.flushed(o)
	default:
		r.wrote(o)
	}
}

// explain fails the run unless something explains an error.
func (r *Referee) explain(o *operation) {
	d := o.device
	errno := block.Errno(o.request.Err)
	switch {
	case errno == syscall.ENOSPC && r.wasFull:
		return
	case errno == syscall.EIO && (r.hasFailed || r.flips || d.excuse != "" || !d.forever && r.disturbed):
		return
	}
	r.scheduler.fail("%v of device %d failed without a reason: %v", o.request.Op, d.number, o.request.Err)
}

// read records what a read saw.
func (r *Referee) read(o *operation) {
	q := o.request
	for at := int64(0); at < q.Length; at += blockSize {
		b := (q.Offset + at) / blockSize
		t, err := tagOf(q.Data[at:], b)
		if err != nil {
			r.scheduler.fail("a read of device %d got bytes of another request: %v", o.device.number, err)
			return
		}
		if o.began >= r.since {
			a := r.scheduler.runner.accesses.get()
			*a = access{tag: t, device: o.device, began: o.began, ended: r.scheduler.now}
			r.blocks[b].accesses = append(r.blocks[b].accesses, a)
		}
	}
}

// wrote records the answer of a write. One that was in flight during a reboot
// may have been executed before it.
func (r *Referee) wrote(o *operation) {
	for _, a := range o.accesses {
		if a.began < r.since {
			continue
		}
		a.ended = r.scheduler.now
		if a.trim = o.request.Op == block.Trim; a.trim {
			continue
		}
		if a.promised = o.request.Flags&block.FUA != 0; !a.promised {
			o.device.dirty++
			r.answered = append(r.answered, a)
		}
	}
}

// flushed records the answer of a flush: the writes before it are durable.
func (r *Referee) flushed(o *operation) {
	d := o.device
	if d.flush > 0 && o.began > d.flush {
		r.scheduler.fail("a flush of device %d succeeds although writes before it were lost", d.number)
	}
	kept := r.answered[:0]
	for _, a := range r.answered {
		if a.dropped && a.device == d && a.ended < o.began {
			r.scheduler.fail("a flush of device %d succeeds although %v was lost", d.number, a.tag)
		}
		if !a.dropped && a.ended < o.began {
			a.promised = true
			a.device.dirty--
		} else {
			kept = append(kept, a)
		}
	}
	clear(r.answered[len(kept):])
	r.answered = kept
}

// refused checks that a device was right to give up its disk.
func (r *Referee) refused(d *deviceRecord, err error) {
	if d.excuse == "" {
		r.scheduler.fail("device %d lost its disk without a reason: %v", d.number, err)
	}
}

// applied records that a write took effect on the disk: no other device has the
// disk now, or may go on as if it had.
func (r *Referee) applied(_ int64, t Tag) {
	if t == zero {
		return
	}
	if !r.drained.applied(t) {
		r.scheduler.fail("%v is executed again, after a target that had executed it ended in order", t)
	}
	for _, d := range r.devices {
		if d.writer && !d.closed && d.number != t.writer() {
			d.conflict(r.scheduler.now, "another client wrote")
		}
	}
}

// flushing records that the disk makes durable what it has. The answer of the
// flush may come after a later flush has failed.
func (r *Referee) flushing() {
	for _, a := range r.answered {
		a.durable = true
	}
}

// lost records that a flush of the disk has failed.
func (r *Referee) lost(*medium) {
	for _, a := range r.answered {
		if !a.durable {
			a.dropped = true
			a.device.flush = max(a.device.flush, r.scheduler.now)
		}
	}
	for _, d := range r.devices {
		if d.closed {
			continue
		}
		if d.stale = true; d.dirty+d.pending > 0 {
			d.excuse = "a flush failed"
		}
	}
}
