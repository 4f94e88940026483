package backend

import "unsafe"

// address returns where p begins, to look at its alignment.
func address(p []byte) uintptr {
	// Safety: the address is compared, never turned into a pointer again.
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}
