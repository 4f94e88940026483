package shm

import (
	"encoding/binary"
	"fmt"
)

// A ring carries records from its owner to the peer. Positions count bytes and
// never wrap in 64 bits; a record starts at a multiple of recordAlign:
//
//	length u32 │ kind u8 │ flags u8 │ 0 u16 │ immediate u32 │ total u32 │ payload, padded
//
// The owner publishes its position in offTail, the peer its own in offHead of its
// segment.
const (
	recordHeader = 16
	recordAlign  = 16

	// maxFragment bounds the payload of a record, so that a long message streams
	// through the ring while the receiver already copies.
	maxFragment = ringSize / 4
)

// Record kinds.
const (
	recordMessage = 1 // a fragment of a Send; total is the message's length
	recordWritten = 2 // an RDMA Write with immediate was placed; total is its length
	recordRefused = 3 // the sender ends the connection; immediate is an asynchronous error code
)

// Record flags.
const (
	flagFirst     = 1
	flagLast      = 2
	flagImmediate = 4
	flagsKnown    = flagFirst | flagLast | flagImmediate
)

// record is a record's header in private memory.
type record struct {
	length    uint32 // bytes of payload in this record
	kind      uint8
	flags     uint8
	immediate uint32
	total     uint32
}

// writer is the owner's end of a ring. It holds no shared word but the cached
// head, which was checked.
type writer struct {
	ring      []byte
	tail      uint64 // next byte to write
	published uint64 // what the peer may see
	head      uint64 // last known position of the peer
}

// free returns the bytes that may be written.
func (w *writer) free() int { return len(w.ring) - int(w.tail-w.head) }

// setHead takes over the peer's position, loaded from its segment.
func (w *writer) setHead(head uint64) error {
	if head-w.head > w.published-w.head || head%recordAlign != 0 {
		return fmt.Errorf("peer consumed %d bytes of %d published", head, w.published)
	}
	w.head = head
	return nil
}

// begin writes a record's header; the caller copies the payload with put and
// then calls end. There is room for both.
func (w *writer) begin(r record) {
	at := int(w.tail) & (len(w.ring) - 1)
	h := w.ring[at : at+recordHeader]
	binary.LittleEndian.PutUint64(h, uint64(r.length)|uint64(r.kind)<<32|uint64(r.flags)<<40)
	binary.LittleEndian.PutUint64(h[8:], uint64(r.immediate)|uint64(r.total)<<32)
	w.tail += recordHeader
}

// put copies payload bytes.
func (w *writer) put(b []byte) {
	at := int(w.tail) & (len(w.ring) - 1)
	if k := copy(w.ring[at:], b); k < len(b) {
		copy(w.ring, b[k:])
	}
	w.tail += uint64(len(b))
}

// end pads the record.
func (w *writer) end() {
	w.tail = (w.tail + recordAlign - 1) &^ (recordAlign - 1)
}

// reader is the peer's end of a ring that another process writes. Nothing in the
// ring is trusted: the header is copied out and checked before it is used, and
// payload is only copied.
type reader struct {
	ring []byte
	head uint64 // next byte to read
	tail uint64 // checked: head ≤ tail ≤ head + len(ring)
	pub  uint64 // the position that was published last
}

// setTail takes over the writer's position, loaded from its segment.
func (r *reader) setTail(tail uint64) error {
	if tail-r.head > uint64(len(r.ring)) || tail%recordAlign != 0 || tail-r.head < r.tail-r.head {
		return fmt.Errorf("peer published up to %d, consumed are %d of a ring of %d bytes", tail, r.head, len(r.ring))
	}
	r.tail = tail
	return nil
}

// next reads the next record's header. It returns false if there is none.
func (r *reader) next() (record, bool, error) {
	if r.head == r.tail {
		return record{}, false, nil
	}
	at := int(r.head) & (len(r.ring) - 1)
	// Each word is loaded once; the record is the private copy.
	w0, w1 := loadWord(r.ring, at), loadWord(r.ring, at+8)
	rec := record{
		length: uint32(w0), kind: uint8(w0 >> 32), flags: uint8(w0 >> 40),
		immediate: uint32(w1), total: uint32(w1 >> 32),
	}
	padded := (uint64(rec.length) + recordAlign - 1) &^ (recordAlign - 1)
	if w0>>48 != 0 || rec.flags&^flagsKnown != 0 || rec.length > maxFragment ||
		recordHeader+padded > r.tail-r.head {
		return record{}, false, fmt.Errorf("malformed record: %d bytes, kind %d, flags %#x", rec.length, rec.kind, rec.flags)
	}
	return rec, true, nil
}

// payload copies n payload bytes at an offset of the current record to dst.
func (r *reader) payload(off int, dst []byte) {
	at := int(r.head+recordHeader+uint64(off)) & (len(r.ring) - 1)
	if k := copy(dst, r.ring[at:]); k < len(dst) {
		copy(dst[k:], r.ring)
	}
}

// skip passes the current record.
func (r *reader) skip(rec record) {
	r.head += recordHeader + (uint64(rec.length)+recordAlign-1)&^(recordAlign-1)
}
