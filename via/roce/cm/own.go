package cm

import "fmt"

// VendorID is in every REQ that a Manager sends: "vbk". By it the passive end
// knows its own kind. The active end knows its own kind by the mark in the
// private data of a REP, REJ or DREQ, which is put there for own ends only.
//
// Own ends send from the UDP port at which they receive, and are answered there;
// all others are answered at [wire.Port], whatever port they send from.
const VendorID = 0x76626b

// mark begins private data between own ends; a byte with the length of what
// follows comes after it. Private data has no length otherwise.
const mark = "vbk"

// MarkSize is what the mark takes of the private data of a REP, REJ or DREQ,
// bytes.
const MarkSize = len(mark) + 1

// roomOf returns the room that a peer tells in the local EE context of its REQ or
// REP. Without reliable datagrams there are no such contexts, and nobody else
// looks at the field; private data has no room for it beside VIA's message.
func roomOf(field uint32, own bool) uint32 {
	if !own {
		return 0
	}
	return field
}

// putPrivate writes private data to its field in a message, with the mark if the
// receiver is of our own kind.
func putPrivate(field, data []byte, own bool) error {
	room := field
	if own {
		room = room[MarkSize:]
	}
	if len(data) > len(room) {
		return fmt.Errorf("private data of %d bytes, %d fit: %w", len(data), len(room), ErrRequest)
	}
	clear(field)
	if own {
		copy(field, mark)
		field[len(mark)] = byte(len(data))
	}
	copy(room, data)
	return nil
}

// openPrivate returns a copy of the private data in its field, and whether it has
// the mark. Without it the data fills the field.
func openPrivate(field []byte) (data []byte, own bool) {
	if string(field[:len(mark)]) != mark || int(field[len(mark)]) > len(field)-MarkSize {
		return append(data, field...), false
	}
	n := int(field[len(mark)])
	return append(data, field[MarkSize:MarkSize+n]...), true
}
