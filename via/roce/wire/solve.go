package wire

import "hash/crc32"

// Solve is Verify for a receiver that does not know the IPv4 identification,
// because its socket does not show it. It finds the one ID with which the ICRC
// is right, if any, assuming that DF is set. 32 bits of checksum less 16
// unknown ones leave a check of 16 bits; a receiver that accepts certain IDs
// only, such as those of segmented sends, regains the bits it rules out. A
// right guess saves the division. With IPv6 it is Verify, and the ID is 0.
func (c *ICRC) Solve(b []byte, guess uint16) (id uint16, ok bool) {
	if len(b) < MinPacket {
		return 0, false
	}
	if !c.isIPv4 {
		return 0, c.difference(b, Identification{}) == 0
	}
	difference := c.difference(b, Identification{ID: guess})
	if difference == 0 {
		return guess, true
	}
	if len(b) > MaxPacket {
		return 0, false
	}
	id, ok = identify(difference, len(b))
	return id ^ guess, ok
}

// identify returns the ID that explains the difference between two checksums of
// a packet of size bytes, by the bits that differ from the ID that the other
// one was computed with.
//
// A CRC is linear: the difference is the CRC, without its initial and final
// complements, of the two ID bytes followed by zeros. Each byte multiplies it
// by x^8 modulo the CRC's polynomial. Divided by x^8 once for each byte from
// the ID on, it is the two bytes themselves. If other bytes changed, it has
// bits that no ID can set.
func identify(difference uint32, size int) (id uint16, ok bool) {
	const before = ip4Size - ip4AtID + udpSize - ICRCSize // plus size: from the ID to the end
	v := multiply(difference, inverse[(before+size)/4])
	return uint16(v<<8) | uint16(v>>8), v>>16 == 0
}

// inverse has x^-32n at index n, which undoes n words. A table for all lengths
// of packets is 4 KiB and takes about 50 µs to make.
var inverse = func() (table [(ip4Size + udpSize + MaxPacket) / 4]uint32) {
	table[0] = 1 << 31 // x^0: the highest power is the lowest bit
	for n := 1; n < len(table); n++ {
		v := table[n-1]
		for range 32 {
			if v>>31 != 0 {
				v = (v^crc32.IEEE)<<1 | 1
			} else {
				v <<= 1
			}
		}
		table[n] = v
	}
	return table
}()

// multiply returns the product of two polynomials modulo that of the CRC, in a
// time that does not depend on them.
func multiply(a, b uint32) uint32 {
	var product uint32
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
