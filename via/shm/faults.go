package shm

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/viablk/viablk/via"
)

// Shared memory loses and changes nothing. Under test the sender makes it a
// faulty fabric: a fault strikes the records of a message after they were written
// and before the peer may see them, and the bytes of an RDMA operation on their
// way between the two memories. The faults know nothing of levels: sequence
// numbers, checksums and notices bring about what the consumers see.

var (
	errShort = errors.New("an operation was cut off")
	errCut   = errors.New("the fabric was cut")
)

// faultyBytes is what a faulty fabric adds to the records that a ring has room
// for: checksums and the end of a message that has none.
const faultyBytes = 8 * recordHeader

// maxHeld bounds the messages that arrive out of order: longer ones fill the ring.
const maxHeld = ringSize / 2

// faultyWire is the state of a link's faults. It may allocate.
type faultyWire struct {
	faults   via.Faults
	asked    bool      // about the work at position
	position uint32    // in the send queue, of the work under way
	fault    via.Fault // of it
	buffer   []byte    // what of an RDMA operation is on its way

	held     []byte // the records of a message that goes behind its successor
	heldWork uint32 // place of its work in the send queue
}

func newFaultyWire(f via.Faults) *faultyWire {
	return &faultyWire{faults: f, buffer: make([]byte, maxFragment)}
}

// ask asks what happens to the work at a position of the send queue, once.
func (f *faultyWire) ask(w *via.Work, position uint32) {
	if f.asked && f.position == position {
		return
	}
	f.asked, f.position = true, position
	f.fault = f.faults.Next(w)
}

// holds reports whether records of the work at a place of the send queue are
// held.
func (f *faultyWire) holds(place uint32) bool { return len(f.held) != 0 && f.heldWork == place }

// disturb adds the checksum to the record that was written last, at start, and
// does to it what the fault of its work says.
func (l *link) disturb(start uint64, r record) {
	f, place := l.faulty, (l.sq.head+l.unacked)&l.sq.mask()
	first := r.kind != recordMessage || r.flags&flagFirst != 0
	last := r.kind != recordMessage || r.flags&flagLast != 0
	l.out.seal(start, r)
	switch {
	case f.fault == via.FaultDrop:
		l.out.tail = start
		if last {
			l.lose()
		}
	case f.fault == via.FaultDuplicate:
		l.out.repeat(start)
	case f.fault == via.FaultReorder && (f.holds(place) || first && len(f.held) == 0 && r.total <= maxHeld):
		a, b := span(l.out.ring, start-l.out.start, int(l.out.tail-start))
		f.held, f.heldWork = append(append(f.held, a...), b...), place
		l.out.tail = start
		l.out.kept += len(a) + len(b) // its place in the ring
	case f.fault == via.FaultCorrupt && last:
		at := start + 8 // immediate data
		if r.length != 0 {
			at = start + recordHeader + uint64(r.length/2)
		}
		a, _ := span(l.out.ring, at-l.out.start, 1)
		a[0] ^= 0x10
	case (f.fault == via.FaultTruncate || f.fault == via.FaultCut) && last:
		r.length /= 2
		r.flags, r.immediate = r.flags&flagFirst, 0
		l.out.seal(start, r)
		if f.fault == via.FaultTruncate {
			l.abort()
			break
		}
		l.Doorbell()
		l.fail(via.AsyncConnectionLost, errCut)
	}
	if last && !f.holds(place) {
		l.release()
	}
}

// lose marks the place of the last record, which was lost.
func (l *link) lose() {
	l.out.seq--
	l.out.begin(record{tag: tag{kind: recordLost}})
	l.out.end()
}

// release puts the records that were held into the ring.
func (l *link) release() {
	f := l.faulty
	if len(f.held) == 0 {
		return
	}
	l.out.kept -= len(f.held)
	l.out.put(f.held)
	f.held = f.held[:0]
	if l.ends != nil {
		l.ends[f.heldWork] = l.out.tail
	}
}

// faultyRdma is rdma over a faulty fabric.
func (l *link) faultyRdma(w *via.Work, budget *int) bool {
	for {
		n := min(int(w.Length-w.Moved), *budget)
		if handled, ok := l.disturbRdma(w, &n); handled {
			return ok
		}
		if w.Moved == w.Length {
			return l.rdmaDone(w)
		}
		if n == 0 {
			return false
		}
		if o := l.faultyStep(w, n); o != granted {
			return l.endRdma(w, o)
		}
		*budget -= n
	}
}

// faultyStep is rdmaStep over a faulty fabric.
func (l *link) faultyStep(w *via.Work, n int) outcome {
	if !l.segmentsLive(w) {
		return gone
	}
	m, o := l.translate(w)
	if o != granted {
		return o
	}
	if !l.enter(w, m) {
		m.word = 0
		l.leave(w, 0)
		return refused
	}
	at := w.RemoteAddr - m.addr + uint64(w.Moved)
	if !l.faulty.copySegments(w, m.bytes[at:at+uint64(n)]) {
		n, o = 0, damaged
	}
	l.leave(w, n)
	return o
}

// disturbRdma does to an RDMA operation what its fault says, before it moves its
// next n bytes; n may become less. It returns whether the operation is over or
// waits, and what rdma returns then.
func (l *link) disturbRdma(w *via.Work, n *int) (handled, ok bool) {
	*n = min(*n, len(l.faulty.buffer))
	half := w.Length / 2
	switch f := l.faulty.fault; f {
	case via.FaultDrop:
		return true, l.loseRdma(w)
	case via.FaultTruncate, via.FaultCut:
		if w.Moved < half {
			*n = min(*n, int(half-w.Moved))
			return false, false
		}
		if f == via.FaultCut {
			l.fail(via.AsyncConnectionLost, errCut)
			return true, false
		}
		l.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteAbort, errShort)
		return true, true
	case via.FaultCorrupt:
		if w.Length == 0 {
			l.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteData, errDamaged)
			return true, true
		}
	case via.FaultDuplicate:
		if w.Moved == w.Length && !w.HasImmediate && l.room(recordHeader) >= recordHeader {
			l.lose() // under a number that the peer knows
		}
	}
	return false, false
}

// loseRdma ends an operation whose request is lost. It returns false if the
// record that marks its place has to wait.
func (l *link) loseRdma(w *via.Work) bool {
	switch {
	case w.Op == via.OpRdmaRead:
		l.failRdma(w, via.StatusTransportError, via.AsyncRdmaTransport, errLost)
	case l.room(recordHeader) >= recordHeader:
		l.out.seq++
		l.lose()
		w.Moved = w.Length
		l.sent(w)
	case l.unreliable:
		l.drop(w)
	default:
		l.stall()
		return false
	}
	return true
}

// copySegments is copySegments over the faulty fabric. It returns false if the
// bytes that arrived are not those that were sent: then they are not placed.
func (f *faultyWire) copySegments(w *via.Work, remote []byte) bool {
	b := f.buffer[:len(remote)]
	if w.Op == via.OpRdmaWrite {
		copySegments(w, b, int(w.Moved))
	} else {
		copy(b, remote)
	}
	sum := crc32.Checksum(b, sumTable)
	if f.fault == via.FaultCorrupt && int(w.Moved)+len(b) == int(w.Length) {
		b[len(b)/2] ^= 0x10
	}
	if crc32.Checksum(b, sumTable) != sum {
		return false
	}
	if w.Op == via.OpRdmaWrite {
		copy(remote, b)
	} else {
		copySegments(w, b, int(w.Moved))
	}
	return true
}

// seal writes the record at start, the last one, again: with a header, whose
// payload is there, and a checksum.
func (w *writer) seal(start uint64, r record) {
	r.flags |= flagSum
	w.tail = start
	w.seq--
	w.begin(r)
	w.tail += uint64(r.length)
	var sum [sumBytes]byte
	binary.LittleEndian.PutUint32(sum[:], sumOf(w.ring, start-w.start, recordHeader+int(r.length)))
	w.put(sum[:])
	w.end()
}

// repeat writes the last record, at start, once more, if there is room.
func (w *writer) repeat(start uint64) {
	n := int(w.tail - start)
	if w.free() < n {
		return
	}
	a, b := span(w.ring, start-w.start, n)
	w.put(a)
	w.put(b)
}
