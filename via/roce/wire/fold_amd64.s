#include "textflag.h"

// Folds the 32 bytes of acc over the distance whose powers by holds, and adds what
// is there.
#define FOLD(acc, by, tmp, there) \
	VPCLMULQDQ $0x00, by, acc, tmp \
	VPCLMULQDQ $0x11, by, acc, acc \
	VPXOR      there, tmp, tmp     \
	VPXOR      tmp, acc, acc

// func fold(by *[6][2]uint64, crc uint32, first *[64]byte, rest *byte, n int) uint32
TEXT ·fold(SB), NOSPLIT, $0-44
	MOVQ    by+0(FP), DX
	MOVL    crc+8(FP), AX
	MOVQ    first+16(FP), BX
	MOVQ    rest+24(FP), SI
	MOVQ    n+32(FP), CX
	VMOVD   AX, X8
	VMOVDQU (BX), Y0
	VMOVDQU 32(BX), Y1
	VPXOR   Y8, Y0, Y0

	// 128 bytes at a time, if that happens at all.
	VBROADCASTI128 16(DX), Y10 // of 64 bytes
	CMPQ           CX, $192
	JLT            halves
	VBROADCASTI128 (DX), Y9    // of 128 bytes
	VMOVDQU        (SI), Y2
	VMOVDQU        32(SI), Y3
	ADDQ           $64, SI
	SUBQ           $64, CX

whole:
	FOLD(Y0, Y9, Y4, (SI))
	FOLD(Y1, Y9, Y5, 32(SI))
	FOLD(Y2, Y9, Y6, 64(SI))
	FOLD(Y3, Y9, Y7, 96(SI))
	ADDQ $128, SI
	SUBQ $128, CX
	CMPQ CX, $128
	JGE  whole
	FOLD(Y0, Y10, Y4, Y2)
	FOLD(Y1, Y10, Y5, Y3)

halves:
	CMPQ CX, $64
	JLT  quarters
	FOLD(Y0, Y10, Y4, (SI))
	FOLD(Y1, Y10, Y5, 32(SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  halves

quarters:
	VBROADCASTI128 32(DX), Y11 // of 32 bytes
	FOLD(Y0, Y11, Y4, Y1)
	CMPQ           CX, $32
	JLT            eighths
	FOLD(Y0, Y11, Y4, (SI))
	ADDQ           $32, SI
	SUBQ           $32, CX

eighths:
	VMOVDQU      48(DX), X12  // of 16 bytes
	VEXTRACTI128 $1, Y0, X1
	FOLD(X0, X12, X4, X1)
	CMPQ         CX, $16
	JLT          done
	FOLD(X0, X12, X4, (SI))

done:
	// 16 bytes are 12, then 8.
	VPCMPEQD   X9, X9, X9
	VPSRLDQ    $12, X9, X9 // 4 bytes of ones
	VMOVDQU    64(DX), X13 // of 8 bytes
	VPCLMULQDQ $0x10, X12, X0, X4
	VPSRLDQ    $8, X0, X0
	VPXOR      X4, X0, X0
	VPAND      X9, X0, X4
	VPCLMULQDQ $0x00, X13, X4, X4
	VPSRLDQ    $4, X0, X0
	VPXOR      X4, X0, X0

	// What is left of 8 after division, by Barrett's method.
	VMOVDQU    80(DX), X13
	VPAND      X9, X0, X4
	VPCLMULQDQ $0x00, X13, X4, X4
	VPAND      X9, X4, X4
	VPCLMULQDQ $0x10, X13, X4, X4
	VPXOR      X4, X0, X0
	VPEXTRD    $1, X0, AX
	VZEROUPPER
	MOVL       AX, ret+40(FP)
	RET

// func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL subleaf+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET
