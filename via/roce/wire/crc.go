package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// resume continues a CRC-32 over first and rest.
func resume(crc uint32, first *[maskedSize]byte, rest []byte) uint32 {
	if !hasFold {
		crc = crc32.Update(crc, crc32.IEEETable, first[:])
		return crc32.Update(crc, crc32.IEEETable, rest)
	}
	var p *byte
	n := len(rest) &^ 15
	if n > 0 {
		p = &rest[0]
	}
	crc = ^fold(&powers, ^crc, first, p, n)
	return extendShort(crc, rest[n:])
}

// extendShort continues a CRC-32 over a few bytes: eight at once, such as a
// tag, for which hash/crc32 takes four times as long.
func extendShort(crc uint32, b []byte) uint32 {
	if len(b) >= 8 {
		lo, hi := ^crc^binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		t := &shifted
		crc = ^(t[7][lo&0xff] ^ t[6][lo>>8&0xff] ^ t[5][lo>>16&0xff] ^ t[4][lo>>24] ^
			t[3][hi&0xff] ^ t[2][hi>>8&0xff] ^ t[1][hi>>16&0xff] ^ t[0][hi>>24])
		b = b[8:]
	}
	if len(b) == 0 {
		return crc
	}
	return crc32.Update(crc, crc32.IEEETable, b)
}

// shifted has the CRCs of a byte and as many zeros as the index says.
var shifted = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := 1; i < len(t); i++ {
		for n, crc := range t[i-1] {
			t[i][n] = t[0][crc&0xff] ^ crc>>8
		}
	}
	return t
}()

// extend continues a CRC-32 over b.
func extend(crc uint32, b []byte) uint32 {
	switch {
	case len(b) == 0:
		return crc
	case len(b) < 16:
		return extendShort(crc, b)
	case len(b) < maskedSize:
		return crc32.Update(crc, crc32.IEEETable, b)
	}
	return resume(crc, (*[maskedSize]byte)(b), b[maskedSize:])
}
