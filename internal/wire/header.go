package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// Offsets that all headers share. The opcode decides the rest of the layout.
const (
	headerAtOpcode       = 0
	headerAtHeaderLength = 58
	headerAtHeaderCRC    = 60
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// le is the byte order of the protocol.
var le = binary.LittleEndian

// DataCRC returns the CRC32C of a payload, for Command.DataCRC and
// Reply.DataCRC. It does not allocate.
func DataCRC(b []byte) uint32 {
	return crc32.Update(0, castagnoli, b)
}

// headerCRC covers the header without the checksum itself: the first 60 bytes,
// then what follows the first 64 (the further segments of a command).
func headerCRC(h *[HeaderSize]byte, extra []byte) uint32 {
	crc := crc32.Update(0, castagnoli, h[:headerAtHeaderCRC])
	if len(extra) > 0 {
		crc = crc32.Update(crc, castagnoli, extra)
	}
	return crc
}

// verifyHeader checks length and checksum of a header, whatever its kind, and
// returns how many bytes of tail belong to it.
func verifyHeader(h *[HeaderSize]byte, tail []byte) (extra int, err error) {
	extra = int(le.Uint16(h[headerAtHeaderLength:])) - HeaderSize
	if uint(extra) > uint(len(tail)) {
		if extra < 0 {
			return 0, errHeaderTiny
		}
		return 0, errShortMessage
	}
	if headerCRC(h, tail[:extra]) != le.Uint32(h[headerAtHeaderCRC:]) {
		return 0, errHeaderCRC
	}
	return extra, nil
}

// RawOpcode returns what a received message claims to be, or 0 if it is empty.
// Nothing is verified: it serves a dispatch on the data path whose branches
// decode, which verifies. [PeekKind] is the verified form.
func RawOpcode(b []byte) Opcode {
	if len(b) == 0 {
		return 0
	}
	return Opcode(b[headerAtOpcode])
}

// PeekKind returns which message b is. Header length and header CRC are
// verified, the rest is left to the message's Decode. With ErrUnknownOpcode the
// opcode is valid too, so that the sender can be told.
func PeekKind(b []byte) (Opcode, error) {
	if len(b) < HeaderSize {
		return 0, errShortHeader
	}
	h := (*[HeaderSize]byte)(b)
	if _, err := verifyHeader(h, b[HeaderSize:]); err != nil {
		return 0, err
	}
	op := Opcode(h[headerAtOpcode])
	if !op.known() {
		return op, errOpcode
	}
	return op, nil
}

// isZero reports whether all of b is zero.
func isZero(b []byte) bool {
	var or byte
	for _, v := range b {
		or |= v
	}
	return or == 0
}
