package shm

import (
	"encoding/binary"
	"fmt"
)

// A ring carries records from its owner to the peer. Positions count bytes and
// never wrap in 64 bits; a record starts at a multiple of recordAlign:
//
//	length u32 │ kind u8 │ flags u8 │ sequence u16 │ immediate u32 │ total u32
//	payload │ checksum u32, where flagged │ padding
//
// The owner publishes its position in offTail, the peer its own in offHead of
// its segment. The sequence number counts records, so that the reader notices
// missing, late and duplicate ones. The checksum covers the record before it;
// memory does not corrupt records, only a faulty fabric under test does
// (faults.go).
//
// While the peer has read everything, the owner may rewind: it continues at the
// ring's start. So a ring whose peer keeps up stays within a page. The low bits
// of the published word, which are 0 in a position, count the rewinds: the peer
// takes its own position as the one that lies at the ring's start.
const (
	recordHeader = 16
	recordAlign  = 16

	// maxFragment bounds the payload of a record, so that a long message
	// streams through the ring while the receiver already copies.
	maxFragment = ringSize / 4
)

// rewindAt is the distance from the ring's start, in bytes, that makes the
// owner rewind.
const rewindAt = 3 << 10

// lapMask selects the rewind count in the published word.
const lapMask = recordAlign - 1

// Record kinds.
const (
	recordMessage = 1 // a fragment of a Send; total is the message's length
	recordWritten = 2 // an RDMA Write with immediate was placed; total is its length
	recordFailed  = 3 // an operation failed, see notice.go
	recordAborted = 4 // the sender gave up the message of the last fragments
	recordLost    = 5 // a faulty fabric lost the record
)

// Record flags.
const (
	flagFirst     = 1
	flagLast      = 2
	flagImmediate = 4
	flagSum       = 8 // a checksum follows the payload
	flagsKnown    = flagFirst | flagLast | flagImmediate | flagSum

	sumBytes = 4
)

// record is a record's header in private memory. It and its tag have at most
// four fields: the compiler keeps larger structs in memory, where a header that
// is stored in pieces and loaded whole fails store forwarding.
type record struct {
	length uint32 // bytes of payload in this record
	tag
	immediate uint32
	total     uint32
}

// tag is the small fields of a header.
type tag struct {
	kind  uint8
	flags uint8
	seq   uint16
}

// padded returns the size of the record without its header.
func (r record) padded() uint64 {
	const toBytes = flagSum / sumBytes // the flag's bit is a multiple of the checksum's size
	return (uint64(r.length) + uint64(r.flags&flagSum)/toBytes + recordAlign - 1) &^ (recordAlign - 1)
}

// writer is the owner's end of a ring. It holds no shared word but the cached
// head, which was checked.
type writer struct {
	ring      []byte
	tail      uint64 // next byte to write
	published uint64 // position that the peer may see
	head      uint64 // last known position of the peer
	// bytes that free leaves out, for notices and aborts when the ring is full
	kept  int
	seq   uint64 // records begun; its low 16 bits number the next
	start uint64 // a position that lies at the ring's start
	laps  uint64 // rewinds
}

// word returns the word to publish.
func (w *writer) word() uint64 { return w.tail | w.laps&lapMask }

// far reports whether the owner should rewind once the peer has read all.
func (w *writer) far() bool { return w.tail-w.start >= rewindAt }

// rewind continues at the ring's start.
func (w *writer) rewind() {
	w.start = w.tail
	w.laps++
}

func newWriter(ring []byte) writer { return writer{ring: ring, kept: recordHeader} }

// free returns the room for ordinary records, in bytes; it can be negative.
func (w *writer) free() int { return len(w.ring) - w.kept - int(w.tail-w.head) }

// setHead validates and stores the peer's position, loaded from its segment.
func (w *writer) setHead(head uint64) error {
	if head-w.head > w.published-w.head || head%recordAlign != 0 {
		return fmt.Errorf("peer consumed %d bytes of %d published", head, w.published)
	}
	w.head = head
	return nil
}

// begin writes a record's header under the next sequence number; the caller
// copies the payload with put and then calls end. There is room for both.
func (w *writer) begin(r record) {
	at := int(w.tail-w.start) & (len(w.ring) - 1)
	h := w.ring[at : at+recordHeader]
	binary.LittleEndian.PutUint64(h, uint64(r.length)|uint64(r.kind)<<32|uint64(r.flags)<<40|w.seq<<48)
	binary.LittleEndian.PutUint64(h[8:], uint64(r.immediate)|uint64(r.total)<<32)
	w.tail += recordHeader
	w.seq++
}

// put copies payload bytes.
func (w *writer) put(b []byte) {
	at := int(w.tail-w.start) & (len(w.ring) - 1)
	if k := copy(w.ring[at:], b); k < len(b) {
		copy(w.ring, b[k:])
	}
	w.tail += uint64(len(b))
}

// end pads the record.
func (w *writer) end() {
	w.tail = (w.tail + recordAlign - 1) &^ (recordAlign - 1)
}

// reader is the peer's end of a ring that another process writes. Nothing in
// the ring is trusted: the header is copied out and checked before it is used,
// and payload is only copied.
type reader struct {
	ring []byte
	head uint64 // next byte to read
	tail uint64 // checked: head ≤ tail ≤ head + len(ring)
	pub  uint64 // the position that was published last
	seq  uint16 // of the next record
	laps uint32 // rewinds

	word  uint64 // last published word of the writer
	start uint64 // a position that lies at the ring's start
}

// setWord validates and stores the word that the writer published.
func (r *reader) setWord(v uint64) error {
	r.word = v
	if lap := uint32(v & lapMask); lap != r.laps&lapMask {
		if lap != (r.laps+1)&lapMask || r.head != r.tail {
			return fmt.Errorf("peer begins its ring again (%#x) before %d bytes are read", v, r.tail-r.head)
		}
		r.laps++
		r.start = r.head
	}
	return r.setTail(v &^ lapMask)
}

// setTail validates and stores the writer's position.
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
	at := int(r.head-r.start) & (len(r.ring) - 1)
	// Each word is loaded once; the record is the private copy.
	w0, w1 := loadWord(r.ring, at), loadWord(r.ring, at+8)
	rec := record{
		length: uint32(w0), tag: tag{kind: uint8(w0 >> 32), flags: uint8(w0 >> 40), seq: uint16(w0 >> 48)},
		immediate: uint32(w1), total: uint32(w1 >> 32),
	}
	if rec.flags&^flagsKnown != 0 || rec.length > maxFragment || recordHeader+rec.padded() > r.tail-r.head {
		return record{}, false, fmt.Errorf("malformed record: %d bytes, kind %d, flags %#x", rec.length, rec.kind, rec.flags)
	}
	return rec, true, nil
}

// peek loads the first bytes of the next record, which may not be written yet.
func (r *reader) peek() uint64 {
	at, mask := int(r.head-r.start), len(r.ring)-1
	return loadWord(r.ring, at&mask) + loadWord(r.ring, (at+64)&mask)
}

// payload copies n payload bytes at an offset of the current record to dst.
func (r *reader) payload(off int, dst []byte) {
	at := int(r.head-r.start+recordHeader+uint64(off)) & (len(r.ring) - 1)
	if k := copy(dst, r.ring[at:]); k < len(dst) {
		copy(dst[k:], r.ring)
	}
}

// skip passes the current record.
func (r *reader) skip(rec record) { r.head += recordHeader + rec.padded() }
