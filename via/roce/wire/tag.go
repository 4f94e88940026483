package wire

// TagSize is the length of a tag, bytes. A tag is an extension: two viablk ends
// agree on a random number for each direction when they connect, and each
// packet of their queue pairs carries the number behind its payload:
//
//	BTH 12 | extension headers | payload | tag 8 | pad 0..3 | ICRC 4
//
// A sender that has read neither the connection manager's messages nor a packet
// has to guess 64 bits before a receiver takes its packet.
const TagSize = 8

// PutTag writes a tag to b.
func PutTag(b []byte, tag uint64) { be.PutUint64(b, tag) }

// Tag returns the tag that PutTag wrote to b.
func Tag(b []byte) uint64 { return be.Uint64(b) }

// HasTag reports whether a packet, BTH to ICRC, has a tag.
func HasTag(b []byte, tag uint64) bool {
	last, ok := LastTag(b)
	return ok && last == tag
}

// LastTag returns the tag of a packet that has one, and false if it is too
// short for one.
func LastTag(b []byte) (uint64, bool) {
	if len(b) < MinPacket+TagSize {
		return 0, false
	}
	end := len(b) - ICRCSize - int(b[bthAtFlags]>>bthPadShift&3)
	if end < BTHSize+TagSize {
		return 0, false
	}
	return be.Uint64(b[end-TagSize:]), true
}

// Untag returns what [Packet.Decode] takes for a packet that has a tag: as many
// bytes follow the payload there as without a tag.
func Untag(b []byte) []byte { return b[:len(b)-TagSize] }
