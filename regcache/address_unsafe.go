package regcache

import "unsafe"

// addressOf returns the address of b's first byte.
func addressOf(b []byte) uint64 {
	// Safety: the address is only compared and sent, never turned back into a
	// pointer; mapped memory does not move.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
