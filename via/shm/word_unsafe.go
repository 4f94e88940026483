package shm

import (
	"sync/atomic"
	"unsafe"
)

// loadWord loads a shared 64-bit word once, with acquire semantics: all stores
// of the writer before the word are visible afterwards.
func loadWord(mem []byte, off int) uint64 {
	word := mem[off : off+8] // checks bounds without a plain load
	// Safety: word has 8 bytes; mem is mapped at a page boundary or, in tests,
	// allocated in 8-byte units, and every off is a multiple of 8.
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))))
}

// storeWord stores a shared 64-bit word, sequentially consistent: it publishes
// all earlier stores and is ordered before later loads, on which the doorbell
// protocol depends. It swaps: under the race detector a Store to memory that is
// not Go's has release semantics only. On amd64 both are one XCHG.
func storeWord(mem []byte, off int, v uint64) {
	word := mem[off : off+8]
	// Safety: as for loadWord.
	_ = atomic.SwapUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), v)
}

// publishWord stores a shared 64-bit word with release semantics: it publishes
// all earlier stores, but later loads may be reordered before it.
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
