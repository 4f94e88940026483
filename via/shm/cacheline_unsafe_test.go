package shm

import (
	"testing"
	"unsafe"
)

// Receiving touches three cache lines of the link.
func TestArrivalsTouchThreeLines(t *testing.T) {
	// Safety: sizes and offsets only.
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layout is made for 64 bits")
	}
	var l link
	at := unsafe.Offsetof(l.receiver)
	if end := at + unsafe.Offsetof(l.receiver.copied) + unsafe.Sizeof(l.receiver.copied); end > 3*64 {
		t.Errorf("what arrivals touch takes %d bytes", end)
	}
	if at := at + unsafe.Offsetof(l.receiver.total); at/64 != 2 {
		t.Errorf("awaitReply does not prefetch the third line: the field is at byte %d", at)
	}
	if at := at + unsafe.Offsetof(l.receiver.in) + unsafe.Offsetof(l.receiver.in.seq); at/64 != 1 {
		t.Errorf("awaitReply does not prefetch the second line: the field is at byte %d", at)
	}
}
