package sleepflag

import (
	"sync/atomic"
	"unsafe"
)

// Load loads a flag of a page, which may be mapped from a peer, once. The index
// is below [Flags].
func Load(page []byte, index int) uint64 { return atomic.LoadUint64(wordAt(page, index)) }

// store stores a flag, ordered before later loads. It swaps: under the race
// detector a Store to memory that is not Go's has release semantics only.
func store(page []byte, index int, v uint64) { _ = atomic.SwapUint64(wordAt(page, index), v) }

func wordAt(page []byte, index int) *uint64 {
	word := page[index*flagSize:][:8]
	// Safety: word has 8 bytes; page is mapped at a page boundary and flagSize
	// is a multiple of 8.
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(word)))
}
