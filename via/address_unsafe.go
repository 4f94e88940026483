package via

import (
	"sync/atomic"
	"unsafe"
)

// addressOf returns the address of b's first byte.
func addressOf(b []byte) uint64 {
	// Safety: the address is only compared and sent, never turned back into a
	// pointer; mapped memory does not move.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// storeStatus publishes a descriptor's status word: the consumer that loads it
// with loadStatus sees the length and immediate data stored before. Nothing
// that is loaded afterwards depends on who saw it.
func storeStatus(b []byte, s Status) {
	// Safety: b has at least 32 bytes (checked by NewDescriptor), so the word
	// at offset 28 is inside. Only descriptors at a 64-byte boundary are
	// posted, so that a word which two goroutines share is aligned.
	storeRelease((*uint32)(unsafe.Pointer(&b[offStatus])), uint32(s))
}

// loadStatus loads a descriptor's status word.
func loadStatus(b []byte) Status {
	// Safety: as for storeStatus.
	return Status(atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[offStatus]))))
}
