package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hasFold reports whether the processor multiplies polynomials in vectors of 32
// bytes: Intel's since Ice Lake, AMD's since Zen 3. hash/crc32 uses 16, and
// takes twice as long for a packet of 4 KiB.
var hasFold = func() bool {
	const vpclmulqdq = 1 << 10
	if !cpu.X86.HasAVX2 || !cpu.X86.HasPCLMULQDQ { // includes OS support for the registers
		return false
	}
	_, _, features, _ := cpuid(7, 0)
	return features&vpclmulqdq != 0
}()

// powers are the multipliers that move the two halves of 16 bytes by 128, 64,
// 32 and 16 bytes: x to the number of bits, plus 32 for the first half and
// minus 32 for the other. The next is x^64 and nothing. The last is for Barrett
// reduction: x^64 divided by the CRC's polynomial, and the polynomial. The
// highest power is the lowest bit, as in the checksum, shifted left by one,
// because the product of two such numbers is one bit short (Gopal et al., Fast
// CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel
// 2009).
var powers = func() (table [6][2]uint64) {
	x := func(n int) uint64 {
		v := uint32(1 << 31)
		for range n {
			v = v>>1 ^ crc32.IEEE&-(v&1)
		}
		return uint64(v) << 1
	}
	for i := range 4 {
		bits := 1024 >> i
		table[i] = [2]uint64{x(bits + 32), x(bits - 32)}
	}
	table[4][0] = x(64)
	table[5] = [2]uint64{0x1_f701_1641, crc32.IEEE<<1 | 1}
	return table
}()

// fold continues a checksum, not complemented, over first and n bytes at rest,
// a multiple of 16. by are the powers.
//
//go:noescape
func fold(by *[6][2]uint64, crc uint32, first *[64]byte, rest *byte, n int) uint32

//go:noescape
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
