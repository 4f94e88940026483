package shm

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/viablk/viablk/via"
)

// What arrives is in sequence, whole and unchanged, or the level's rule for what
// is lost, cut off or damaged applies.

var (
	errLost    = errors.New("a message was lost on the way or arrived out of order")
	errDamaged = errors.New("bytes were changed on the way")
)

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// span returns n bytes of a ring from a distance to its start on, in up to two
// pieces.
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

// intact reports whether the current record has the checksum that it says. The
// writer may change it afterwards: that is its own message.
func (r *reader) intact(rec record) bool {
	n := recordHeader + int(rec.length)
	var sum [sumBytes]byte
	r.payload(int(rec.length), sum[:])
	return sumOf(r.ring, r.head-r.start, n) == binary.LittleEndian.Uint32(sum[:])
}

// outOfSequence handles a record whose number is not the next. It returns true
// if the record is passed over: it is there twice, or late. Else something before
// it is missing: only unreliable delivery goes on.
func (l *link) outOfSequence(rec record) (passed bool, err error) {
	if int16(rec.seq-l.in.seq) < 0 {
		if rec.kind != recordMessage || rec.flags&flagLast != 0 {
			l.stats.Dropped++
		}
		return true, nil
	}
	if !l.unreliable {
		l.refuseMessage(via.StatusTransportError, via.AsyncConnectionLost, errLost)
		return true, nil
	}
	if l.current != nil {
		return true, errors.New("records are missing inside a message")
	}
	l.skipping = rec.kind == recordMessage && rec.flags&flagFirst == 0
	return false, nil
}

// receiveDamaged handles a record whose checksum is wrong.
func (l *link) receiveDamaged(rec record) {
	if l.current == nil && !l.unreliable && !l.rq.empty() {
		l.current = l.rq.pop() // it says so
	}
	switch {
	case l.current != nil:
		l.failReceive(rec, via.StatusTransportError, via.StatusTransportError)
	case l.unreliable:
		if !l.skipping {
			l.stats.Dropped++
		}
		l.skip(rec)
	default:
		l.refuseMessage(via.StatusTransportError, via.AsyncConnectionLost, errDamaged)
	}
}

// receiveEnd handles the end of a message that has none, and the place of one
// that was lost.
func (l *link) receiveEnd(rec record) error {
	inside := l.current != nil || l.skipping
	if rec.length != 0 || rec.flags != 0 || rec.immediate != 0 || rec.total != 0 || inside != (rec.kind == recordAborted) {
		return errors.New("malformed end of a message")
	}
	switch {
	case l.skipping:
		l.skip(rec)
	case l.current != nil:
		l.failReceive(rec, via.StatusPartialError, via.StatusTransportError)
	case l.unreliable:
		l.stats.Dropped++
	default:
		l.refuseMessage(via.StatusTransportError, via.AsyncConnectionLost, errLost)
	}
	return nil
}
