package shm

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/viablk/viablk/via"
)

// Shared memory neither loses nor changes bytes. Under test the sender makes it
// a faulty fabric: it applies a fault to the records of a message before it
// publishes them, and to the bytes of an RDMA operation between the two
// memories. Faults do not depend on the level: sequence numbers, checksums and
// notices produce the behaviour that consumers see.

var (
	errShort = errors.New("an operation was cut off")
	errCut   = errors.New("the fabric was cut")
)

// faultyBytes is the room that a faulty fabric needs in the ring beside the
// records: for checksums and the end of an aborted message.
const faultyBytes = 8 * recordHeader

// maxHeld bounds the messages that can be reordered: longer ones fill the ring.
const maxHeld = ringSize / 2

// faultyWire is the state of a link's faults. It may allocate.
type faultyWire struct {
	faults   via.Faults
	asked    bool      // about the work at position
	position uint32    // in the send queue, of the work in flight
	fault    via.Fault // of that work
	buffer   []byte    // bytes of an RDMA operation in flight

	held     []byte // records of a message to send after its successor
	heldWork uint32 // sender.place of its work
}

func newFaultyWire(f via.Faults) *faultyWire {
	return &faultyWire{faults: f, buffer: make([]byte, maxFragment)}
}

// ask draws the fault of the work at a position of the send queue, once.
func (f *faultyWire) ask(w *via.Work, position uint32) {
	if f.asked && f.position == position {
		return
	}
	f.asked, f.position = true, position
	f.fault = f.faults.Next(w)
}

// holds reports whether records of the work at a sender.place are held.
func (f *faultyWire) holds(place uint32) bool { return len(f.held) != 0 && f.heldWork == place }

// disturb adds the checksum to the last record, at start, and applies the fault
// of its work. A cut fabric is the only error.
func (s *sender) disturb(start uint64, r record) error {
	var cut error
	f, place := s.faulty, s.place(s.unacked)
	first := r.kind != recordMessage || r.flags&flagFirst != 0
	last := r.kind != recordMessage || r.flags&flagLast != 0
	s.out.seal(start, r)
	switch {
	case f.fault == via.FaultDrop:
		s.out.tail = start
		if last {
			s.lose()
		}
	case f.fault == via.FaultDuplicate:
		s.out.repeat(start)
	case f.fault == via.FaultReorder && (f.holds(place) || first && len(f.held) == 0 && r.total <= maxHeld):
		a, b := span(s.out.ring, start-s.out.start, int(s.out.tail-start))
		f.held, f.heldWork = append(append(f.held, a...), b...), place
		s.out.tail = start
		s.out.kept += len(a) + len(b) // its place in the ring
	case f.fault == via.FaultCorrupt && last:
		at := start + 8 // immediate data
		if r.length != 0 {
			at = start + recordHeader + uint64(r.length/2)
		}
		a, _ := span(s.out.ring, at-s.out.start, 1)
		a[0] ^= 0x10
	case (f.fault == via.FaultTruncate || f.fault == via.FaultCut) && last:
		r.length /= 2
		r.flags, r.immediate = r.flags&flagFirst, 0
		s.out.seal(start, r)
		if f.fault == via.FaultTruncate {
			s.abortMessage()
			break
		}
		s.publish()
		cut = errCut
	}
	if last && !f.holds(place) {
		s.release()
	}
	return cut
}

// lose replaces the last record by a recordLost.
func (s *sender) lose() {
	s.out.seq--
	s.out.begin(record{tag: tag{kind: recordLost}})
	s.out.end()
}

// release puts the held records into the ring.
func (s *sender) release() {
	f := s.faulty
	if len(f.held) == 0 {
		return
	}
	s.out.kept -= len(f.held)
	s.out.put(f.held)
	f.held = f.held[:0]
	if s.ends != nil {
		s.ends[f.heldWork] = s.out.tail
	}
}

// faultyRdma is rdma over a faulty fabric.
func (s *sender) faultyRdma(w *via.Work, budget *int) (bool, error) {
	for {
		n := min(int(w.Length-w.Moved), *budget)
		if handled, done, err := s.disturbRdma(w, &n); handled {
			return done, err
		}
		if w.Moved == w.Length {
			return s.rdmaDone(w)
		}
		if n == 0 {
			return false, nil
		}
		if o := s.rdmaStep(w, n); o != granted {
			return s.endRdma(w, o)
		}
		*budget -= n
	}
}

// disturbRdma applies the fault of an RDMA operation before it moves its next n
// bytes; it may lower n. It returns whether the operation has ended or waits,
// and the results of rdma in that case.
func (s *sender) disturbRdma(w *via.Work, n *int) (handled, done bool, err error) {
	*n = min(*n, len(s.faulty.buffer))
	half := w.Length / 2
	switch f := s.faulty.fault; f {
	case via.FaultDrop:
		done, err = s.loseRdma(w)
		return true, done, err
	case via.FaultTruncate, via.FaultCut:
		if w.Moved < half {
			*n = min(*n, int(half-w.Moved))
			return false, false, nil
		}
		if f == via.FaultCut {
			return true, false, errCut
		}
		return true, true, s.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteAbort, errShort)
	case via.FaultCorrupt:
		if w.Length == 0 {
			return true, true, s.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteData, errDamaged)
		}
	case via.FaultDuplicate:
		if w.Moved != w.Length || w.HasImmediate {
			break
		}
		room, err := s.room(recordHeader)
		if err != nil {
			return true, false, err
		}
		if room >= recordHeader {
			s.lose() // under a number that the peer knows
		}
	}
	return false, false, nil
}

// loseRdma completes an operation whose request is lost. It returns false if
// the ring has no room for the recordLost.
func (s *sender) loseRdma(w *via.Work) (bool, error) {
	if w.Op == via.OpRdmaRead {
		return true, s.failRdma(w, via.StatusTransportError, via.AsyncRdmaTransport, errLost)
	}
	switch room, err := s.room(recordHeader); {
	case err != nil:
		return false, err
	case room >= recordHeader:
		s.out.seq++
		s.lose()
		w.Moved = w.Length
		s.sent(w)
	case s.unreliable:
		s.dropMessage(w)
	default:
		s.stall()
		return false, nil
	}
	return true, nil
}

// copySegments is copySegments over the faulty fabric. It returns false, and
// does not place the bytes, if they were changed in flight.
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

// seal rewrites the header of the last record, at start, and appends a
// checksum. The payload stays.
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

// repeat duplicates the last record, at start, if there is room.
func (w *writer) repeat(start uint64) {
	n := int(w.tail - start)
	if w.free() < n {
		return
	}
	a, b := span(w.ring, start-w.start, n)
	w.put(a)
	w.put(b)
}
