package initiator

import (
	"errors"

	"github.com/viablk/viablk/internal/block"
)

// What was answered and is not flushed may be lost when the target's machine starts
// again, which changes the disk's write verifier. A disk that may have lost something
// must not go on as if nothing was: the next Flush would promise what does not hold.
// So the queues count the writes that were answered, and a Flush notes how many it
// covers.

// errSuperseded is why a connection ends whose session the keeper has given up.
var errSuperseded = errors.New("the session was given up")

// count counts an answer before the caller gets it. It returns an error if the keeper
// may have looked at the counters already: then the request is sent again instead, so
// that no write is answered that nobody counted. One of the two sees the other, for each
// writes before it reads.
func (q *Queue) count(o *op) error {
	r := o.request
	if q.device.keeper == nil || o.err != nil {
		return nil
	}
	switch r.Op {
	case block.Flush:
		q.device.cover(o.mark)
	case block.Write, block.WriteZeroes:
		if r.Flags&block.FUA != 0 {
			return nil
		}
		q.written.Store(q.written.Load() + 1)
		if q.session.superseded.Load() {
			return errSuperseded
		}
	}
	return nil
}

// writes returns how many writes were answered on all queues.
func (d *Device) writes() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.pastWrites
	for _, q := range d.conns {
		if q != nil {
			n += q.written.Load()
		}
	}
	return n
}

// covered returns how many writes a Flush that begins now covers: those of all queues,
// or none for certain if the disk's promise is for one queue and there are others.
func (d *Device) covered() uint64 {
	if d.info.Features&block.CanMultiConn == 0 {
		d.mu.Lock()
		several := len(d.conns) > 1
		d.mu.Unlock()
		if several {
			return 0
		}
	}
	return d.writes()
}

// cover notes that writes are durable.
func (d *Device) cover(writes uint64) {
	for {
		old := d.durable.Load()
		if writes <= old || d.durable.CompareAndSwap(old, writes) {
			return
		}
	}
}

// dirty reports whether something was answered that is not flushed.
func (d *Device) dirty() bool { return d.writes() > d.durable.Load() }
