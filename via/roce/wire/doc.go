// Package wire encodes and decodes RoCEv2: InfiniBand transport packets inside
// UDP datagrams to port [Port], and the connection manager's messages inside
// those. It does no I/O, does not depend on VIA and keeps no state beyond
// scratch memory, so it can be tested, fuzzed and read alone. docs/roce.md has
// its rules.
//
// A packet is the payload of one datagram:
//
//	BTH 12 | extension headers | payload | pad 0..3 | ICRC 4
//
// [Packet] is a decoded packet: Decode applies every rule that needs no
// connection; Put writes the headers and leaves the payload in place. [ICRC] is
// the checksum, over parts that need not be adjacent. [REQ] to [DREP] are the
// messages of the connection manager, each a MAD of [MADSize] bytes, the
// payload of a datagram to queue pair [GSI].
//
// Decoders validate all input. They return a [Refusal], a number that the
// caller can count; a refused packet is dropped, or answered by a NAK if
// [Refusal.IsInvalidRequest] holds. They read memory more than once, so the
// peer must not be able to write it. The receiver checks the values that depend
// on the connection: the queue pair and its service, the source, the ICRC, the
// PSN, the path MTU, keys and ranges.
//
// Encoders write the given values; the decoder refuses values that break a
// rule. A value wider than its field loses its high bits. The caller owns
// values and buffers; functions keep and allocate nothing, and are safe for
// concurrent use on different values.
//
// Between viablk ends a tag may precede the pad; see [Untag].
//
// All numbers are big-endian, except the ICRC itself.
package wire

import "encoding/binary"

// Port is the UDP destination port of RoCEv2. The sender chooses the source
// port, which spreads flows; the ICRC covers it.
const Port = 4791

// Limits of a packet, bytes of the datagram's payload.
const (
	ICRCSize   = 4
	MaxPayload = 4096 // the largest path MTU
	MaxHeader  = BTHSize + AtomicETHSize
	MinPacket  = BTHSize + ICRCSize
	MaxPacket  = BTHSize + RETHSize + ImmDtSize + MaxPayload + TagSize + ICRCSize

	// MaxMessage is the longest message, whatever the operation.
	MaxMessage = 1 << 31
)

// DefaultPKey is the partition key of a fabric without partitions: partition
// 0x7fff, full member.
const DefaultPKey = 0xffff

// be is the byte order of everything except the ICRC.
var be = binary.BigEndian

// uint24 reads three bytes.
func uint24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

// putUint24 writes the low 24 bits of v.
func putUint24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}
