package buddy

import (
	"fmt"
	"unsafe"
)

// split divides a table into the links and the states of units.
func split(table []byte, units int) (links []uint32, state []uint8) {
	// Safety: only the address is looked at.
	if uintptr(unsafe.Pointer(unsafe.SliceData(table)))%unsafe.Alignof(uint32(0)) != 0 {
		panic(fmt.Sprintf("buddy: table of %d bytes is not aligned", len(table)))
	}
	// Safety: the table is aligned and longer than the links, whose bytes
	// nothing else uses; it holds no pointers.
	links = unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(table))), 2*units)
	return links, table[8*units:]
}
