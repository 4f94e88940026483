package shm

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/viablk/viablk/via"
)

// The receiver checks that records arrive in sequence, whole and unchanged. The
// reliability level decides what a lost, aborted or damaged message does.

var (
	errLost    = errors.New("a message was lost or arrived out of order")
	errDamaged = errors.New("bytes were changed in flight")
)

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// span returns n bytes of a ring, from offset from on, in up to two pieces.
func span(ring []byte, from uint64, n int) (a, b []byte) {
	at := int(from) & (len(ring) - 1)
	if k := len(ring) - at; k < n {
		return ring[at:], ring[:n-k]
	}
	return ring[at : at+n], nil
}

func sumOf(ring []byte, from uint64, n int) uint32 {
	a, b := span(ring, from, n)
	return crc32.Update(crc32.Checksum(a, sumTable), sumTable, b)
}

// intact reports whether the checksum of the current record is right. A writer
// that changes the record afterwards harms only its own message.
func (r *reader) intact(rec record) bool {
	n := recordHeader + int(rec.length)
	var sum [sumBytes]byte
	r.payload(int(rec.length), sum[:])
	return sumOf(r.ring, r.head-r.start, n) == binary.LittleEndian.Uint32(sum[:])
}

// outOfSequence handles a record whose number is not the next. It returns true
// if the caller skips the record, which is a duplicate or late. Otherwise
// records before it are missing: only unreliable delivery goes on.
func (r *receiver) outOfSequence(rec record) (passed bool, err error) {
	if int16(rec.seq-r.in.seq) < 0 {
		if rec.kind != recordMessage || rec.flags&flagLast != 0 {
			r.dropped++
		}
		return true, nil
	}
	if !r.unreliable {
		return true, r.refuse(via.StatusTransportError, via.AsyncConnectionLost, errLost)
	}
	if r.current != nil {
		return true, errors.New("records are missing inside a message")
	}
	r.skipping = rec.kind == recordMessage && rec.flags&flagFirst == 0
	return false, nil
}

// receiveDamaged handles a record whose checksum is wrong.
func (r *receiver) receiveDamaged(rec record) error {
	if r.current == nil && !r.unreliable && !r.rq.Empty() {
		r.current = r.rq.Pop() // its status reports the damage
	}
	switch {
	case r.current != nil:
		return r.failReceive(rec, via.StatusTransportError, via.StatusTransportError)
	case r.unreliable:
		if !r.skipping {
			r.dropped++
		}
		r.skipRest(rec)
		return nil
	default:
		return r.refuse(via.StatusTransportError, via.AsyncConnectionLost, errDamaged)
	}
}

// receiveEnd handles the record that aborts a message, and the one in place of
// a lost message.
func (r *receiver) receiveEnd(rec record) error {
	inside := r.current != nil || r.skipping
	if rec.length != 0 || rec.flags != 0 || rec.immediate != 0 || rec.total != 0 || inside != (rec.kind == recordAborted) {
		return errors.New("malformed end of a message")
	}
	switch {
	case r.skipping:
		r.skipRest(rec)
	case r.current != nil:
		return r.failReceive(rec, via.StatusPartialError, via.StatusTransportError)
	case r.unreliable:
		r.dropped++
	default:
		return r.refuse(via.StatusTransportError, via.AsyncConnectionLost, errLost)
	}
	return nil
}
