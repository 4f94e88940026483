package nbdclient

import (
	"sync"

	"github.com/viablk/viablk/internal/block"
)

// holds are the ranges that the slots of a queue hold or wait for. The owner of
// the queue calls the methods; granted runs on the goroutine that released the
// range.
type holds struct {
	ranges *block.Ranges
	waits  []hold // by slot
	bell   *bell

	mu sync.Mutex
	// +checklocks:mu
	ready []uint16 // slots that hold their range since the last call of acquired
	// +checklocks:mu
	closed bool // what is granted is released at once
}

// hold is the hold of a slot, or its wait. It outlives its queue if that is
// closed while it waits.
type hold struct {
	wait        block.Wait
	off, length int64
	write       bool
	held        bool // as the owner knows
}

func newHolds(ranges *block.Ranges, depth int, b *bell) *holds {
	h := &holds{ranges: ranges, waits: make([]hold, depth), bell: b, ready: make([]uint16, 0, depth)}
	for i := range h.waits {
		h.waits[i].wait.Granted = func() { h.granted(uint16(i)) }
	}
	return h
}

// acquire holds a range for a slot and returns true, or returns false: the slot
// waits until acquired returns it.
func (h *holds) acquire(i uint16, off, length int64, write bool) bool {
	w := &h.waits[i]
	w.off, w.length, w.write = off, length, write
	w.held = h.ranges.Acquire(&w.wait, off, length, write)
	return w.held
}

// granted notes that a slot holds its range.
func (h *holds) granted(i uint16) {
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.ready = append(h.ready, i)
	}
	h.mu.Unlock()
	if closed {
		w := &h.waits[i]
		h.ranges.Release(w.off, w.length, w.write)
		return
	}
	h.bell.ring()
}

// acquired moves the slots that hold their range by now to dst.
func (h *holds) acquired(dst []uint16) []uint16 {
	h.mu.Lock()
	defer h.mu.Unlock()
	dst = append(dst, h.ready...)
	h.ready = h.ready[:0]
	for _, i := range dst {
		h.waits[i].held = true
	}
	return dst
}

// release ends the hold of a slot, if it has one.
func (h *holds) release(i uint16) {
	if w := &h.waits[i]; w.held {
		w.held = false
		h.ranges.Release(w.off, w.length, w.write)
	}
}

// close ends all waits and holds.
func (h *holds) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.acquired(nil)
	for i := range h.waits {
		h.release(uint16(i))
	}
}
