package wire

import "math"

// CommandFlags modify a command.
type CommandFlags uint8

// The flags of a command. The export's range check decides which make sense
// for which opcode, except FlagDataDigest, which changes the layout.
const (
	FlagFUA        CommandFlags = 1 << iota // reply only when durable
	FlagNoHole                              // write zeroes, keep the range allocated
	FlagFastZero                            // fail unless faster than writing
	FlagReplay                              // sent before, on a path now fenced
	FlagDataDigest                          // Write: DataCRC is set. Else: of the reply's data
	FlagNoDeadline                          // exempt from the target's own time limit
	flagsKnown     = 1<<iota - 1
)

// DataMode says how the payload of a command moves.
type DataMode uint8

// The data modes. The number 2 is reserved.
const (
	ModeNone   DataMode = iota // no payload
	ModeInline                 // inside the message: Write's command, Read's and BlockStatus's reply
	_
	ModePull  // Write: the target reads the segments by RDMA
	ModePlace // Read: the target writes the segments by RDMA
)

// Segment is a contiguous piece of initiator memory that the target may touch
// by RDMA for one command.
type Segment struct {
	Addr   uint64 // virtual address, as registered
	Handle uint32 // memory handle of the registration
	Length uint32 // bytes, > 0
}

// Command is one I/O, initiator to target. Seq, PathEpoch, Slot and Export come
// from the session; the receiver compares them with its own state.
type Command struct {
	Opcode       Opcode
	Flags        CommandFlags
	Mode         DataMode
	NumSegments  uint8  // valid entries of Segments
	Slot         uint16 // session-wide, owned by one connection
	Export       uint16 // handle from OpenResponse
	Seq          uint32 // per slot, one more for each new command
	PathEpoch    uint32 // that of the connection
	Offset       uint64 // bytes
	Length       uint32 // bytes
	InlineLength uint32 // bytes of payload after the header; Write inline only
	DataCRC      uint32 // DataCRC of the payload of a Write; 0 without its flag
	AgeBudget    uint32 // ms after which the target may refuse to start; 0 none
	Priority     uint16 // ioprio value; 0 none
	HeaderLength uint16 // bytes incl. segments; set by Encode and Decode
	Segments     [MaxSegments]Segment
}

// Offsets of a command. Segments after the first follow the header.
const (
	commandAtOpcode = 0
	// 1 FUA, 2 no hole, 4 fast zero, 8 replay, 16 data digest (read, write and
	// block-status only), 32 no deadline
	commandAtFlags         = 1
	commandAtMode          = 2  // 0 none, 1 inline, 3 pull, 4 place
	commandAtNumSegments   = 3  // 1 to 4 with pull and place, else 0
	commandAtSlot          = 4  // session-wide; each belongs to one connection
	commandAtExport        = 6  // handle from OpenResponse
	commandAtSeq           = 8  // per slot, incremented by each new command
	commandAtPathEpoch     = 12 // of the connection
	commandAtOffset        = 16 // bytes; 0 for flush
	commandAtLength        = 24 // bytes; 0 for flush, ≤ MaxIO for read and write, ≤ MaxInline inline
	commandAtInlineLength  = 28 // Length for an inline write, else 0
	commandAtSegmentAddr   = 32 // first segment; 0 without segments
	commandAtSegmentHandle = 40
	commandAtSegmentLength = 44
	commandAtDataCRC       = 48 // CRC32C of a write's payload with flag 16, else 0
	commandAtAgeBudget     = 52 // ms until the target may refuse to start; 0 none
	commandAtPriority      = 56 // ioprio; 0 none
	commandAtHeaderLength  = 58 // 64, plus 16 for each segment after the first
	commandAtHeaderCRC     = 60 // covers the further segments too
	commandSize            = 64
)

// Offsets within a segment after the header.
const (
	segmentAtAddr   = 0 // virtual address; Addr + Length does not wrap
	segmentAtHandle = 8
	segmentAtLength = 12 // > 0; all segments add up to the command's Length
	segmentSize     = SegmentSize
)

// Refusals of commands alone.
var (
	errCommandMode     = refusal(ErrMalformed, "data mode does not fit the opcode")
	errSegmentCount    = refusal(ErrLimit, "more segments than a command may have")
	errSegmentsUnfit   = refusal(ErrMalformed, "segments do not fit the data mode")
	errSegmentReserved = refusal(ErrMalformed, "first segment set without segments")
	errSegmentRange    = refusal(ErrMalformed, "segment is empty or wraps around")
	errSegmentSum      = refusal(ErrMalformed, "segments do not add up to the length")
	errInlineLength    = refusal(ErrMalformed, "inline length does not fit the command")
	errLengthLimit     = refusal(ErrLimit, "transfer is longer than the limit")
	errDigestNoData    = refusal(ErrMalformed, "data digest asked without data")
	errFlushRange      = refusal(ErrMalformed, "flush with an offset or a length")
)

// Encode writes the command to b, sets c.HeaderLength, and returns it: how many
// bytes were written, 64 plus 16 for every segment after the first. Inline
// payload goes where c.Inline(b) points. It panics if NumSegments exceeds
// MaxSegments or b is shorter than the result; [MaxHeader] bytes always
// suffice.
func (c *Command) Encode(b []byte) int {
	n := HeaderSize
	if c.NumSegments > 1 {
		n += int(c.NumSegments-1) * SegmentSize
	}
	c.HeaderLength = uint16(n)
	h, extra := (*[HeaderSize]byte)(b), b[HeaderSize:n]
	h[commandAtOpcode] = byte(c.Opcode)
	h[commandAtFlags] = byte(c.Flags)
	h[commandAtMode] = byte(c.Mode)
	h[commandAtNumSegments] = c.NumSegments
	le.PutUint16(h[commandAtSlot:], c.Slot)
	le.PutUint16(h[commandAtExport:], c.Export)
	le.PutUint32(h[commandAtSeq:], c.Seq)
	le.PutUint32(h[commandAtPathEpoch:], c.PathEpoch)
	le.PutUint64(h[commandAtOffset:], c.Offset)
	le.PutUint32(h[commandAtLength:], c.Length)
	le.PutUint32(h[commandAtInlineLength:], c.InlineLength)
	var first Segment
	if c.NumSegments > 0 {
		first = c.Segments[0]
	}
	le.PutUint64(h[commandAtSegmentAddr:], first.Addr)
	le.PutUint32(h[commandAtSegmentHandle:], first.Handle)
	le.PutUint32(h[commandAtSegmentLength:], first.Length)
	le.PutUint32(h[commandAtDataCRC:], c.DataCRC)
	le.PutUint32(h[commandAtAgeBudget:], c.AgeBudget)
	le.PutUint16(h[commandAtPriority:], c.Priority)
	le.PutUint16(h[commandAtHeaderLength:], uint16(n))
	for i := 1; i < int(c.NumSegments); i++ {
		putSegment(extra[(i-1)*SegmentSize:], &c.Segments[i])
	}
	le.PutUint32(h[commandAtHeaderCRC:], headerCRC(h, extra))
	return n
}

func putSegment(b []byte, s *Segment) {
	p := (*[SegmentSize]byte)(b)
	le.PutUint64(p[segmentAtAddr:], s.Addr)
	le.PutUint32(p[segmentAtHandle:], s.Handle)
	le.PutUint32(p[segmentAtLength:], s.Length)
}

// Decode reads the received message msg: header, segments and inline payload,
// no more. It refuses what contradicts itself or a limit of this package; the
// payload's checksum is not verified. It does not allocate.
//
// If the header is intact, Opcode, Slot, Export, Seq and PathEpoch are set even
// when the message is refused; after ErrUnknownOpcode they serve the reply with
// StatusNotSupported. The rest is valid only without an error.
func (c *Command) Decode(msg []byte) error {
	if len(msg) < HeaderSize {
		return errShortHeader
	}
	return c.decode((*[HeaderSize]byte)(msg), msg[HeaderSize:])
}

// DecodeSplit is Decode for a message that was received into two buffers: head
// took the first HeaderSize bytes, tail the rest. Inline payload, if any, is
// all of tail, so that it can be aligned for direct I/O.
func (c *Command) DecodeSplit(head, tail []byte) error {
	if len(head) != HeaderSize {
		return errShortHeader
	}
	return c.decode((*[HeaderSize]byte)(head), tail)
}

func (c *Command) decode(h *[HeaderSize]byte, tail []byte) error {
	extra, err := verifyHeader(h, tail)
	if err != nil {
		return err
	}
	c.Opcode = Opcode(h[commandAtOpcode])
	c.Flags = CommandFlags(h[commandAtFlags])
	c.Mode = DataMode(h[commandAtMode])
	c.NumSegments = h[commandAtNumSegments]
	c.Slot = le.Uint16(h[commandAtSlot:])
	c.Export = le.Uint16(h[commandAtExport:])
	c.Seq = le.Uint32(h[commandAtSeq:])
	c.PathEpoch = le.Uint32(h[commandAtPathEpoch:])
	c.Offset = le.Uint64(h[commandAtOffset:])
	c.Length = le.Uint32(h[commandAtLength:])
	c.InlineLength = le.Uint32(h[commandAtInlineLength:])
	c.DataCRC = le.Uint32(h[commandAtDataCRC:])
	c.AgeBudget = le.Uint32(h[commandAtAgeBudget:])
	c.Priority = le.Uint16(h[commandAtPriority:])
	c.HeaderLength = le.Uint16(h[commandAtHeaderLength:])
	c.Segments = [MaxSegments]Segment{}
	first := &c.Segments[0]
	first.Addr = le.Uint64(h[commandAtSegmentAddr:])
	first.Handle = le.Uint32(h[commandAtSegmentHandle:])
	first.Length = le.Uint32(h[commandAtSegmentLength:])
	if err := c.checkShape(uint64(len(tail) - extra)); err != nil {
		return err
	}
	return c.decodeSegments(tail[:extra])
}

// modesOf lists the data modes of each command, a bit each. Zero means unknown.
var modesOf = [OpBlockStatus + 1]uint8{
	OpRead:        1<<ModeInline | 1<<ModePlace,
	OpWrite:       1<<ModeInline | 1<<ModePull,
	OpFlush:       1 << ModeNone,
	OpTrim:        1 << ModeNone,
	OpWriteZeroes: 1 << ModeNone,
	OpPrefetch:    1 << ModeNone,
	OpBlockStatus: 1 << ModeInline,
}

// checkShape verifies everything but the segments. payload is what follows the
// header in the message.
func (c *Command) checkShape(payload uint64) error {
	if int(c.Opcode) >= len(modesOf) || modesOf[c.Opcode] == 0 {
		if c.Opcode.known() {
			return errOtherMessage
		}
		return errOpcode
	}
	if c.Flags > flagsKnown {
		return errReservedFlags
	}
	if modesOf[c.Opcode]>>c.Mode&1 == 0 {
		return errCommandMode
	}
	var inline uint32
	if c.Opcode <= OpWrite {
		if c.Length > MaxIO {
			return errLengthLimit
		}
		if c.Mode == ModeInline && c.Length > MaxInline {
			return errInlineLimit
		}
		if c.Mode == ModeInline && c.Opcode == OpWrite {
			inline = c.Length
		}
	} else if c.Opcode == OpFlush && (c.Offset != 0 || c.Length != 0) {
		return errFlushRange
	}
	if c.InlineLength != inline {
		return errInlineLength
	}
	if uint64(inline) != payload {
		return errMessageLength
	}
	if c.Flags&FlagDataDigest == 0 || c.Opcode != OpWrite {
		if c.DataCRC != 0 {
			return errDigestUnasked
		}
		if c.Flags&FlagDataDigest != 0 && c.Mode == ModeNone {
			return errDigestNoData
		}
	}
	return nil
}

// decodeSegments reads the segments after the first from extra and verifies
// them all.
func (c *Command) decodeSegments(extra []byte) error {
	if c.Mode < ModePull {
		switch {
		case c.NumSegments != 0:
			return errSegmentsUnfit
		case len(extra) != 0:
			return errHeaderLength
		case c.Segments[0] != Segment{}:
			return errSegmentReserved
		}
		return nil
	}
	n := int(c.NumSegments)
	switch {
	case n == 0:
		return errSegmentsUnfit
	case n > MaxSegments:
		return errSegmentCount
	case len(extra) != (n-1)*SegmentSize:
		return errHeaderLength
	}
	var sum uint64
	for i := range n {
		s := &c.Segments[i&(MaxSegments-1)]
		if i > 0 {
			p := (*[SegmentSize]byte)(extra[(i-1)*SegmentSize:])
			*s = Segment{
				Addr:   le.Uint64(p[segmentAtAddr:]),
				Handle: le.Uint32(p[segmentAtHandle:]),
				Length: le.Uint32(p[segmentAtLength:]),
			}
		}
		if s.Length == 0 || s.Addr > math.MaxUint64-uint64(s.Length) {
			return errSegmentRange
		}
		sum += uint64(s.Length)
	}
	if sum != uint64(c.Length) {
		return errSegmentSum
	}
	return nil
}

// Inline returns the inline payload within the message that c was decoded from
// or encoded into, sharing its memory; it is empty if there is none. It panics
// if msg is not that message.
func (c *Command) Inline(msg []byte) []byte {
	end := int(c.HeaderLength) + int(c.InlineLength)
	return msg[c.HeaderLength:end:end]
}
