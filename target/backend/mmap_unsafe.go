package backend

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident asks which pages of a mapping are in memory. It returns false where
// the system does not say.
func resident(mapping []byte, present *[residentStep]byte) bool {
	// Safety: mincore writes a byte for each page of the mapping, at most
	// residentStep, and touches none of the pages.
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mapping))),
		uintptr(len(mapping)), uintptr(unsafe.Pointer(present)))
	return errno == 0
}
