package initiator

import (
	"errors"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
)

// A restart of the target's machine changes the disk's write verifier and may
// lose writes that were answered and not flushed. The device must not resume
// such a disk: the next Flush would promise durability of lost writes. So the
// queues count the answered writes, and a Flush notes how many it covers.

// errSuperseded ends a connection whose session the reconnector replaced.
var errSuperseded = errors.New("the session was given up")

// writeCounter counts the answered writes of a queue: its owner writes it, any
// goroutine reads it.
type writeCounter struct{ n atomic.Uint64 }

// count counts a write before the caller gets its answer. It returns an error
// if the reconnector may have read the counters already; the queue then
// retransmits the request, so that no answered write is uncounted. Queue and
// reconnector each store before they load, so one of them sees the other.
func (w *writeCounter) count(d *Device, s *session, o *op) error {
	r := o.request
	if d.reconnector == nil || o.err != nil {
		return nil
	}
	switch r.Op {
	case block.Flush:
		d.markDurable(o.mark)
	case block.Write, block.WriteZeroes:
		if r.Flags&block.FUA != 0 {
			return nil
		}
		w.n.Store(w.n.Load() + 1)
		if s.superseded.Load() {
			return errSuperseded
		}
	}
	return nil
}

// writes returns the number of answered writes of all queues.
func (d *Device) writes() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.pastWrites
	for _, q := range d.conns {
		if q != nil {
			n += q.written.n.Load()
		}
	}
	return n
}

// flushCoverage returns how many writes a Flush covers that begins now: those
// of all queues, or 0 if a Flush covers one queue alone and there are others.
func (d *Device) flushCoverage() uint64 {
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

// markDurable notes that writes are durable.
func (d *Device) markDurable(writes uint64) {
	for {
		old := d.durable.Load()
		if writes <= old || d.durable.CompareAndSwap(old, writes) {
			return
		}
	}
}

// dirty reports whether an answered write is not flushed.
func (d *Device) dirty() bool { return d.writes() > d.durable.Load() }
