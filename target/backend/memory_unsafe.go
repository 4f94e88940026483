package backend

import "unsafe"

// words returns p, whose length is a multiple of 8, as numbers.
func words(p []byte) []uint64 {
	// Safety: p is a mapping that begins at a page, so the numbers are aligned;
	// it holds no pointers, and lives until it is unmapped, as the result does.
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/wordSize)
}
