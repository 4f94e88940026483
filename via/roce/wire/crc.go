package wire

import "hash/crc32"

// resume goes on with a CRC-32 over first and rest.
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
	if n < len(rest) {
		crc = crc32.Update(crc, crc32.IEEETable, rest[n:])
	}
	return crc
}

// extend goes on with a CRC-32 over b.
func extend(crc uint32, b []byte) uint32 {
	switch {
	case len(b) == 0:
		return crc
	case len(b) < maskedSize:
		return crc32.Update(crc, crc32.IEEETable, b)
	}
	return resume(crc, (*[maskedSize]byte)(b), b[maskedSize:])
}
