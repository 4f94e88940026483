//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/arena"
)

// bounce is registered memory for a work that has more segments than the device
// takes. VIA promises 252, devices have a few; whoever uses so many pays for a copy.
type bounce struct {
	memory *arena.Arena
	mr     *C.struct_ibv_mr
}

func (b *bounce) addr() uintptr {
	// Safety: the address of mapped memory, as a number for the device.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.memory.Bytes())))
}

// detour returns memory for a work, with the bytes that go out.
func (l *link) detour(w *via.Work, out bool) (*bounce, error) {
	b, err := l.spareFor(int(w.Length))
	if err != nil {
		return nil, err
	}
	if out {
		to := b.memory.Bytes()
		for _, s := range w.Segments {
			to = to[copy(to, s.Bytes):]
		}
	}
	return b, nil
}

// spareFor returns memory of at least size bytes: what another work has left, or new.
func (l *link) spareFor(size int) (*bounce, error) {
	for i, b := range l.spare {
		if len(b.memory.Bytes()) >= size {
			l.spare[i] = l.spare[len(l.spare)-1]
			l.spare = l.spare[:len(l.spare)-1]
			return b, nil
		}
	}
	m, err := arena.New(max(size, 1))
	if err != nil {
		return nil, err
	}
	// Safety: the memory is mapped, and stays so until the region is deregistered.
	mr, err := C.shim_register(l.pd, unsafe.Pointer(unsafe.SliceData(m.Bytes())), C.size_t(len(m.Bytes())), 0, 0, 0)
	if mr == nil {
		_ = m.Close()
		return nil, fmt.Errorf("register %d bytes for a work of many segments: %w", size, err)
	}
	return &bounce{m, mr}, nil
}

// scatter brings what has arrived to the segments of a work.
func (b *bounce) scatter(w *via.Work, size int) {
	from := b.memory.Bytes()[:size]
	for _, s := range w.Segments {
		from = from[copy(s.Bytes, from):]
	}
}

// close gives the memory back.
func (b *bounce) close() {
	_ = C.ibv_dereg_mr(b.mr) // of a device that is gone
	_ = b.memory.Close()
}
