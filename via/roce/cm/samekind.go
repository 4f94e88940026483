package cm

import (
	"fmt"

	"github.com/viablk/viablk/via/roce/wire"
)

// VendorID is in every REQ that a Manager sends: "vbk". It tells the passive
// end that the peer is a viablk end. The active end knows that by the mark in
// the private data of a REP, REJ or DREQ, which only viablk ends are sent.
//
// Viablk ends send from the UDP port at which they receive and are answered
// there. All other ends are answered at [wire.Port], whatever port they send
// from.
const VendorID = 0x76626b

// mark begins private data between viablk ends. A byte with the length of the
// data follows; private data otherwise has no length.
const mark = "vbk"

// MarkSize is the length of the mark and the length byte, bytes.
const MarkSize = len(mark) + 1

// roomOf returns the room that a viablk peer states in the local EE context of
// its REQ or REP. The field belongs to reliable datagrams, which do not exist
// on Ethernet, and no other implementation reads it; private data has no space
// left beside VIA's message.
func roomOf(field uint32, sameKind bool) uint32 {
	if !sameKind {
		return 0
	}
	return field
}

// requestTag returns the tag that a viablk peer states in its REQ, or 0. It is
// in a reserved word and the Q_Key, which no other implementation reads.
func requestTag(req *wire.REQ) uint64 {
	if req.VendorID != VendorID {
		return 0
	}
	return req.Tag
}

// replyTag returns the tag that a viablk peer states in its REP, or 0. It is in
// the last bytes of the private data, which are zeros without it.
func replyTag(rep *wire.REP, sameKind bool) uint64 {
	at := len(rep.Private) - wire.TagSize
	if !sameKind || int(rep.Private[len(mark)]) > at-MarkSize {
		return 0
	}
	return wire.Tag(rep.Private[at:])
}

// putPrivate writes private data to its field in a message, with the mark if
// the receiver is a viablk end.
func putPrivate(field, data []byte, sameKind bool) error {
	room := field
	if sameKind {
		room = room[MarkSize:]
	}
	if len(data) > len(room) {
		return fmt.Errorf("private data of %d bytes, %d fit: %w", len(data), len(room), ErrRequest)
	}
	clear(field)
	if sameKind {
		copy(field, mark)
		field[len(mark)] = byte(len(data))
	}
	copy(room, data)
	return nil
}

// openPrivate returns a copy of the private data in its field, and whether it
// has the mark. Without the mark the data fills the field.
func openPrivate(field []byte) (data []byte, sameKind bool) {
	if string(field[:len(mark)]) != mark || int(field[len(mark)]) > len(field)-MarkSize {
		return append(data, field...), false
	}
	n := int(field[len(mark)])
	return append(data, field[MarkSize:MarkSize+n]...), true
}
