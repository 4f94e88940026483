// Package wire is the bytes of RoCEv2 and nothing else: InfiniBand transport
// packets inside UDP datagrams to port [Port], and the connection manager's
// messages inside those. It moves nothing, knows no VIA and keeps no state
// beyond scratch memory, so it can be tested, fuzzed and read alone.
// docs/roce.md has its tables.
//
// A packet is the payload of one datagram:
//
//	BTH 12 | extension headers | payload | pad 0..3 | ICRC 4
//
// [Packet] is that packet taken apart: Decode applies every rule that needs no
// connection, Put writes the headers in front of a payload that stays where it
// is. [ICRC] is the checksum, over parts that need not be adjacent. [REQ] to
// [DREP] are the messages of the connection manager, each a MAD of [MADSize]
// bytes, the payload of a datagram to queue pair [GSI].
//
// Decoders trust nothing. They say what is wrong as a [Refusal], which is a
// number, so that the caller can count it; what is refused is dropped, or
// answered by a NAK where [Refusal.IsInvalidRequest] says so. They read memory
// more than once, so it must be memory that the peer cannot write. What depends
// on the connection is the receiver's to check: the queue pair and its service,
// the source, the ICRC, the PSN, the path MTU, keys and ranges.
//
// Encoders write what they are given; what they write for values that break a
// rule is refused by the decoder. A value wider than its field loses its high
// bits. Values and buffers are the caller's, nothing is kept, nothing is
// allocated, and everything is safe for concurrent use on different values.
//
// All numbers are big-endian, except the ICRC itself.
package wire

import "encoding/binary"

// Port is the UDP destination port of RoCEv2. The source port is the sender's
// to choose, for spreading flows; the ICRC covers it.
const Port = 4791

// Limits of a packet, bytes of the datagram's payload.
const (
	ICRCSize   = 4
	MaxPayload = 4096 // the largest path MTU
	MaxHeader  = BTHSize + AtomicETHSize
	MinPacket  = BTHSize + ICRCSize
	MaxPacket  = BTHSize + RETHSize + ImmDtSize + MaxPayload + ICRCSize

	// MaxMessage is the longest message, whatever the operation.
	MaxMessage = 1 << 31
)

// DefaultPKey is the partition key of a fabric without partitions: partition
// 0x7fff, full member.
const DefaultPKey = 0xffff

// be is the byte order of everything but the ICRC.
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
