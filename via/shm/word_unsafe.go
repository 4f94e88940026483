package shm

import (
	"sync/atomic"
	"unsafe"
)

// loadWord loads a shared 64-bit word once. It acquires: what its writer stored
// before storing the word is visible afterwards.
func loadWord(mem []byte, off int) uint64 {
	word := mem[off : off+8] // checks bounds without a plain load
	// Safety: word has 8 bytes; mem is mapped at a page boundary or, in tests,
	// allocated in 8-byte units, and every off is a multiple of 8.
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))))
}

// storeWord stores a shared 64-bit word. It publishes everything stored before,
// and is ordered before later loads (a doorbell protocol depends on it).
func storeWord(mem []byte, off int, v uint64) {
	word := mem[off : off+8]
	// Safety: as for loadWord.
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), v)
}

// publishWord stores a shared 64-bit word. It publishes everything stored before,
// but later loads may come first: it is for words whose writer waits for nothing.
func publishWord(mem []byte, off int, v uint64) {
	word := mem[off : off+8]
	// Safety: as for loadWord.
	storeRelease((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), v)
}

// addressOf returns the address of b's first byte.
func addressOf(b []byte) uint64 {
	// Safety: the address is only subtracted, never turned back into a pointer.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
