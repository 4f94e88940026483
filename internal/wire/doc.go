// Package wire encodes and decodes the messages and immediates of the block
// protocol between an initiator and a target. It performs no I/O, allocates
// nothing on the data path and does not import via, so tests and fuzzers run it
// alone. docs/wire.md has its rules.
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
// Decoders check every length against the message and a limit before they use
// it, and require reserved bits to be zero. A decoder refuses a message with a
// [Refusal] of one of the classes [ErrShort], [ErrCorrupt], [ErrMalformed],
// [ErrLimit], [ErrVersion] and [ErrUnknownOpcode]. It reads memory more than
// once, so the memory must be private: never memory that a peer can write by
// RDMA. The receiver checks the state of the session: slot, sequence, path
// epoch, credits, negotiated lengths, the export's size.
//
// Encoders do not check the values of fields; the decoder refuses values that
// break a rule. Values and buffers belong to the caller, the package keeps
// nothing, and every function is safe for concurrent use on different values.
package wire

// The protocol's constants.
const (
	Version     = thisVersion // protocol version
	HeaderSize  = 64          // bytes, the header of every message
	SegmentSize = 16          // bytes, an encoded Segment
	ExtentSize  = 8           // bytes, an encoded Extent
	MaxSegments = 4           // segments of one command
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
