//go:build !race

#include "textflag.h"

// func storeRelease(word *uint32, v uint32)
TEXT ·storeRelease(SB), NOSPLIT, $0-12
	MOVQ word+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET
