package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapTwice maps shared memory, from, once more: in the place of to, which is
// mapped memory of the same size. Both begin at a page.
func mapTwice(to, from []byte) error {
	// Safety: both are mapped; the pages of to that go have no other user.
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), 0, unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)),
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	return err
}
