package nbdclient

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"github.com/viablk/viablk/internal/block"
)

// replyMode is the form of replies that the client and the server agreed on.
type replyMode uint8

const (
	simpleReplies replyMode = iota
	chunkedReplies
	extendedReplies
)

// decoder reads the replies of a connection. Headers and everything of unknown
// length go through private memory of a fixed size, in which they are checked;
// data goes to the memory of the request that it answers, and nowhere else. An
// error is the end of the connection: the server broke the protocol.
type decoder struct {
	mode       replyMode
	context    uint32 // number of base:allocation
	hasContext bool
	slots      []slot

	// finished gets the slots whose reply is complete.
	finished func(i uint16)

	buffer  []byte
	r, w    int // buffer[r:w] is not decoded
	ahead   int // bytes of the buffer that are received into
	next    func(*decoder) (bool, error)
	current *slot
	index   uint16 // of current
	dest    []byte // of the request: where its data goes
	last    bool   // the chunk is the last of its reply
	left    int64  // bytes of the chunk that are not decoded
	kind    uint16
}

// bufferSize is the private memory of a decoder, in bytes: more than any part
// of a reply that is decoded as a whole.
const bufferSize = 64 << 10

// Behind data of at least largeData bytes only the next header is received: if
// more such data follows it, none of that has to be copied.
const largeData = 16 << 10

// headers are the bytes before the data of a reply.
var headers = [...]int{
	simpleReplies: simpleReplySize, chunkedReplies: chunkSize + 8, extendedReplies: extendedChunkSize + 8,
}

// maximumChunks bounds the chunks of a reply.
const maximumChunks = 1 << 20

// errProtocol is a server that breaks the protocol.
type errProtocol struct{ what string }

func (e *errProtocol) Error() string { return "the server breaks the protocol: " + e.what }

// broken returns an errProtocol.
func broken(format string, args ...any) error { return &errProtocol{fmt.Sprintf(format, args...)} }

// remoteError is a failure that the server explains.
type remoteError struct {
	errno syscall.Errno
	text  string
}

func (e *remoteError) Error() string { return fmt.Sprintf("the server says %q: %v", e.text, e.errno) }
func (e *remoteError) Unwrap() error { return e.errno }

func newDecoder(mode replyMode, slots []slot, finished func(uint16)) *decoder {
	return &decoder{
		mode: mode, slots: slots, finished: finished,
		buffer: make([]byte, bufferSize), ahead: bufferSize, next: (*decoder).header,
	}
}

// room returns the memory that the next bytes are to be received into: rest
// follows first. A decoder that has decoded what it could has room.
func (d *decoder) room() (first, rest []byte) {
	if d.r == d.w {
		d.r, d.w = 0, 0
	} else if d.r > 0 {
		d.w = copy(d.buffer, d.buffer[d.r:d.w])
		d.r = 0
	}
	if len(d.dest) > 0 { // then nothing is in the buffer
		return d.dest, d.buffer[:d.ahead]
	}
	return d.buffer[d.w:d.ahead], nil
}

// received takes n bytes that were received into room, and decodes them.
func (d *decoder) received(n int) error {
	direct := min(n, len(d.dest))
	d.dest = d.dest[direct:]
	d.w += n - direct
	for {
		if more, err := d.next(d); err != nil || !more {
			return err
		}
	}
}

// bytes returns the next n bytes, or false while they are not there.
func (d *decoder) bytes(n int) ([]byte, bool) {
	if d.w-d.r < n {
		return nil, false
	}
	p := d.buffer[d.r : d.r+n]
	d.r += n
	return p, true
}

// find finds the request that a reply is for.
func (d *decoder) find(cookie uint64) error {
	i := cookie & slotMask
	if i >= uint64(len(d.slots)) {
		return broken("a reply has the cookie %#x of no request", cookie)
	}
	s := &d.slots[i]
	if (s.state != slotSending && s.state != slotSent) || s.cookie != cookie || s.answered {
		return broken("a reply has the cookie %#x of no request", cookie)
	}
	d.current, d.index = s, uint16(i)
	d.ahead = bufferSize
	return nil
}

// finish ends the reply of the current slot.
func (d *decoder) finish() {
	d.current.answered = true
	d.finished(d.index)
	d.current = nil
	d.next = (*decoder).header
}

// header decodes the header of a reply or of a chunk.
func (d *decoder) header() (bool, error) {
	if d.w-d.r < 4 {
		return false, nil
	}
	magic := binary.BigEndian.Uint32(d.buffer[d.r:])
	switch {
	case magic == magicSimpleReply && d.mode != extendedReplies:
		b, ok := d.bytes(simpleReplySize)
		if !ok {
			return false, nil
		}
		return true, d.simple(binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:]))
	case magic == magicChunk && d.mode == chunkedReplies:
		b, ok := d.bytes(chunkSize)
		if !ok {
			return false, nil
		}
		if err := d.find(binary.BigEndian.Uint64(b[8:])); err != nil {
			return false, err
		}
		return true, d.chunk(binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), uint64(binary.BigEndian.Uint32(b[16:])))
	case magic == magicExtendedReply && d.mode == extendedReplies:
		b, ok := d.bytes(extendedChunkSize)
		if !ok {
			return false, nil
		}
		if err := d.find(binary.BigEndian.Uint64(b[8:])); err != nil {
			return false, err
		}
		if offset := binary.BigEndian.Uint64(b[16:]); offset != uint64(d.current.offset()) {
			return false, broken("a reply has the offset %d of a request at %d", offset, d.current.offset())
		}
		return true, d.chunk(binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint64(b[24:]))
	}
	return false, broken("a reply begins with %#08x", magic)
}

// simple decodes a reply without chunks.
func (d *decoder) simple(number uint32, cookie uint64) error {
	if err := d.find(cookie); err != nil {
		return err
	}
	s := d.current
	op := s.r.Op
	switch {
	case s.chunks > 0:
		return broken("a reply in chunks ends without one")
	case number != 0:
		s.err = errnoOf(number)
	case op == block.Status || op == block.Read && d.mode != simpleReplies:
		return broken("a %v is answered without chunks", op)
	case op == block.Read:
		d.last = true
		d.expectData(s.data())
		return nil
	}
	d.finish()
	return nil
}

// chunk decodes the header of a chunk of the current slot.
func (d *decoder) chunk(flags, kind uint16, length uint64) error {
	s := d.current
	op := s.r.Op
	if s.chunks++; s.chunks > maximumChunks {
		return broken("a reply has more than %d chunks", maximumChunks)
	}
	d.last, d.kind = flags&chunkDone != 0, kind
	refuse := func() error { return broken("a %v is answered by a chunk of type %d and %d bytes", op, kind, length) }
	switch {
	case kind == chunkNone:
		if length != 0 || !d.last {
			return refuse()
		}
		return d.endChunk()
	case kind == chunkData && op == block.Read:
		if length <= 8 || length-8 > uint64(s.length()) {
			return refuse()
		}
		d.next = (*decoder).data
	case kind == chunkHole && op == block.Read:
		if length != 12 {
			return refuse()
		}
		d.next = (*decoder).hole
	case kind == chunkStatus && op == block.Status && d.mode == chunkedReplies:
		if length < 12 || length%8 != 4 || length > 4+8*maximumExtents || len(s.r.Extents) > 0 {
			return refuse()
		}
		d.next = (*decoder).context32
	case kind == chunkStatusExt && op == block.Status && d.mode == extendedReplies:
		if length < 24 || length%16 != 8 || length > 8+16*maximumExtents || len(s.r.Extents) > 0 {
			return refuse()
		}
		d.next = (*decoder).context64
	case kind&chunkErrorBit != 0:
		if length < 6 || length > 6+maximumErrorText+8 {
			return refuse()
		}
		d.next = (*decoder).failure
	default:
		return refuse()
	}
	d.left = int64(length)
	return nil
}

// endChunk ends a chunk, and the reply if it was the last.
func (d *decoder) endChunk() error {
	s := d.current
	d.next = (*decoder).header
	switch {
	case !d.last:
		return nil
	case s.err != nil:
	case s.r.Op == block.Read && !s.cover.whole(s.length()):
		return broken("a read of %d bytes is not answered in whole", s.length())
	case s.r.Op == block.Status && len(s.r.Extents) == 0:
		return broken("a status is answered without extents")
	}
	d.finish()
	return nil
}

// part returns the part of the current request that a chunk answers.
func (d *decoder) part(offset, length uint64) ([]byte, error) {
	s := d.current
	at := offset - uint64(s.offset())
	if offset < uint64(s.offset()) || length == 0 || length > uint64(s.length()) || at > uint64(s.length())-length {
		return nil, broken("a read of %d bytes at %d is answered by %d bytes at %d", s.length(), s.offset(), length, offset)
	}
	if !s.cover.add(int64(at), int64(length)) {
		return nil, broken("a read at %d is answered twice, at %d", s.offset(), offset)
	}
	return s.data()[at : at+length], nil
}

// data decodes a chunk of data up to where the data begins.
func (d *decoder) data() (bool, error) {
	b, ok := d.bytes(8)
	if !ok {
		return false, nil
	}
	p, err := d.part(binary.BigEndian.Uint64(b), uint64(d.left-8))
	if err != nil {
		return false, err
	}
	d.expectData(p)
	return true, nil
}

// expectData has the next bytes go to p.
func (d *decoder) expectData(p []byte) {
	d.dest, d.next = p, (*decoder).payload
	if len(p) >= largeData {
		d.ahead = headers[d.mode]
	}
}

// payload moves data to where it goes.
func (d *decoder) payload() (bool, error) {
	n := copy(d.dest, d.buffer[d.r:d.w])
	d.r += n
	d.dest = d.dest[n:]
	if len(d.dest) > 0 {
		return false, nil
	}
	d.dest = nil
	if d.current.chunks == 0 {
		d.finish()
		return true, nil
	}
	return true, d.endChunk()
}

// hole decodes a part of a read that is zeroes.
func (d *decoder) hole() (bool, error) {
	b, ok := d.bytes(12)
	if !ok {
		return false, nil
	}
	p, err := d.part(binary.BigEndian.Uint64(b), uint64(binary.BigEndian.Uint32(b[8:])))
	if err != nil {
		return false, err
	}
	clear(p)
	return true, d.endChunk()
}

// failure decodes an error.
func (d *decoder) failure() (bool, error) {
	b, ok := d.bytes(int(d.left))
	if !ok {
		return false, nil
	}
	number, length := binary.BigEndian.Uint32(b), int(binary.BigEndian.Uint16(b[4:]))
	if number == 0 || length > len(b)-6 {
		return false, broken("an error chunk of %d bytes has the error %d and %d bytes of text", len(b), number, length)
	}
	if s := d.current; s.err == nil {
		s.err = errnoOf(number)
		if length > 0 {
			s.err = &remoteError{errnoOf(number), string(b[6 : 6+length])}
		}
	}
	return true, d.endChunk()
}

// context32 decodes which context a compact status chunk is of.
func (d *decoder) context32() (bool, error) {
	b, ok := d.bytes(4)
	if !ok {
		return false, nil
	}
	d.left -= 4
	d.next = (*decoder).extents32
	return true, d.checkContext(binary.BigEndian.Uint32(b))
}

// context64 decodes which context an extended status chunk is of.
func (d *decoder) context64() (bool, error) {
	b, ok := d.bytes(8)
	if !ok {
		return false, nil
	}
	d.left -= 8
	if count := int64(binary.BigEndian.Uint32(b[4:])); count*16 != d.left {
		return false, broken("a status chunk with %d bytes of extents says that it has %d of them", d.left, count)
	}
	d.next = (*decoder).extents64
	return true, d.checkContext(binary.BigEndian.Uint32(b))
}

func (d *decoder) checkContext(number uint32) error {
	if !d.hasContext || number != d.context {
		return broken("a status has the context %d, which was not agreed on", number)
	}
	return nil
}

// extents32 decodes compact extents.
func (d *decoder) extents32() (bool, error) {
	for d.left > 0 {
		b, ok := d.bytes(8)
		if !ok {
			return false, nil
		}
		d.left -= 8
		if err := d.extent(uint64(binary.BigEndian.Uint32(b)), uint64(binary.BigEndian.Uint32(b[4:]))); err != nil {
			return false, err
		}
	}
	return true, d.endChunk()
}

// extents64 decodes extended extents.
func (d *decoder) extents64() (bool, error) {
	for d.left > 0 {
		b, ok := d.bytes(16)
		if !ok {
			return false, nil
		}
		d.left -= 16
		if err := d.extent(binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])); err != nil {
			return false, err
		}
	}
	return true, d.endChunk()
}

// extent adds an extent to the answer, as far as the caller wants it.
func (d *decoder) extent(length, flags uint64) error {
	if length == 0 || length > math.MaxInt64 {
		return broken("a status has an extent of %d bytes", length)
	}
	d.current.r.AddExtent(int64(length), block.ExtentFlags(flags)&block.KnownExtentFlags)
	return nil
}
