// Package wire is the bytes of the block protocol and nothing else: what an
// initiator and a target say to each other in VIA messages and immediates. It
// moves nothing, allocates nothing on the data path and knows no VIA, so it can
// be tested, fuzzed and read alone. docs/wire.md has one table per message.
//
// There are four kinds of message, told apart by the first byte (see [Opcode]):
//
//	0x01-0x3f  a command, initiator to target, see [Command]
//	0x40-0x7f  a control request, see [Message]
//	0x80       the reply to a command, see [Reply]
//	0xc0-0xff  control responses, events and refusals, see [Message]
//
// Every message starts with a header of [HeaderSize] bytes, little-endian, that
// ends in its own length and a CRC32C; the header CRC is always there because
// software fabrics have no checksum end to end. A command that succeeded may
// also be answered by the 32 bits of an [Immediate].
//
// Decoders trust nothing: every length is compared with the message and with a
// limit before it is used, reserved bits must be zero, and whatever is refused
// is refused with a [Refusal] of one of the classes [ErrShort], [ErrCorrupt],
// [ErrMalformed], [ErrLimit], [ErrVersion] and [ErrUnknownOpcode]. Decoding
// reads memory more than once, so it must be private: never memory that a peer
// can write by RDMA. What depends on the session is the receiver's to check:
// slot, sequence, path epoch, credits, negotiated lengths, the export's size.
//
// Encoders write what they are given; what they write for values that break a
// rule is refused by the decoder. Values and buffers are the caller's, nothing
// is kept, and everything is safe for concurrent use on different values.
package wire

// The protocol's constants.
const (
	Version     = 1  // protocol version
	HeaderSize  = 64 // bytes, the header of every message
	SegmentSize = 16 // bytes, an encoded Segment
	ExtentSize  = 8  // bytes, an encoded Extent
	MaxSegments = 4  // segments of one command
)

// Limits that hold in every session; what a session negotiates is lower.
const (
	MaxIO          = 64 << 20 // bytes, longest Read or Write
	MaxInline      = 1 << 20  // bytes, longest payload inside a message
	MaxControlSize = 8192     // bytes, longest control message with its header
	MaxName        = 4096     // bytes, an export's name
	MaxDescription = 1024     // bytes, an export's description; longer is clipped
	MaxReason      = 128      // bytes, text that explains a refusal; longer is clipped
	MaxDepth       = 1024     // commands in flight on one connection
	MaxConns       = 1024     // I/O connections of one path
)

// MaxHeader is the longest header of any message, bytes: a command with all its
// segments. A receive buffer of MaxHeader + n bytes takes n bytes inline.
const MaxHeader = HeaderSize + (MaxSegments-1)*SegmentSize
