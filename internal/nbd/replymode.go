package nbd

import "encoding/binary"

// replyMode is how requests and replies are laid out. It is agreed in the
// handshake.
type replyMode uint8

const (
	simple     replyMode = iota // compact requests, simple replies
	structured                  // chunks where there is data or an error text
	extended                    // extended requests, and chunks for everything
)

// requestSize returns the size of a request header in bytes.
func (d replyMode) requestSize() int {
	if d == extended {
		return extendedRequestSize
	}
	return requestHeaderSize
}

// maximumChunkHead is the longest header of a chunk with the fields of a hole.
const maximumChunkHead = extendedReplySize + 12

// putChunk writes the header of a chunk to b, with length bytes behind it, and
// returns its size.
func (d replyMode) putChunk(b []byte, flags, kind uint16, h *header, length int) int {
	binary.BigEndian.PutUint16(b[4:], flags)
	binary.BigEndian.PutUint16(b[6:], kind)
	binary.BigEndian.PutUint64(b[8:], h.cookie)
	if d == extended {
		binary.BigEndian.PutUint32(b, magicExtendedReply)
		binary.BigEndian.PutUint64(b[16:], h.offset)
		binary.BigEndian.PutUint64(b[24:], uint64(length))
		return extendedReplySize
	}
	binary.BigEndian.PutUint32(b, magicStructured)
	binary.BigEndian.PutUint32(b[16:], uint32(length))
	return chunkHeaderSize
}
