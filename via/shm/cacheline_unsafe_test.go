package shm

import (
	"testing"
	"unsafe"
)

// A turn for arrivals touches three cache lines of its link.
func TestArrivalsTouchThreeLines(t *testing.T) {
	// Safety: sizes and offsets only.
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layout is made for 64 bits")
	}
	var l link
	if end := unsafe.Offsetof(l.copied) + unsafe.Sizeof(l.copied); end > 3*64 {
		t.Errorf("what arrivals touch takes %d bytes", end)
	}
	if at := unsafe.Offsetof(l.total); at != 2*64 {
		t.Errorf("the third line begins at byte %d", at)
	}
}
