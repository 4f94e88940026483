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

// bounceBuffer is registered memory for a work that has more segments than the
// device supports. VIA guarantees 252 segments, devices a few: such a work is
// copied.
type bounceBuffer struct {
	memory *arena.Arena
	mr     *C.struct_ibv_mr
}

func (b *bounceBuffer) addr() uintptr {
	// Safety: the address of mapped memory, as a number for the device.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.memory.Bytes())))
}

// bounceWork returns a buffer for a work; if out, with the work's bytes.
func (l *link) bounceWork(w *via.Work, out bool) (*bounceBuffer, error) {
	b, err := l.bounceFor(int(w.Length))
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

// bounceFor returns a buffer of at least size bytes: a reserved one or a new
// one.
func (l *link) bounceFor(size int) (*bounceBuffer, error) {
	for i, b := range l.reserved {
		if len(b.memory.Bytes()) >= size {
			l.reserved[i] = l.reserved[len(l.reserved)-1]
			l.reserved = l.reserved[:len(l.reserved)-1]
			return b, nil
		}
	}
	m, err := arena.New(max(size, 1))
	if err != nil {
		return nil, err
	}
	// Safety: the memory is mapped, and stays so until the region is
	// deregistered.
	mr, err := C.shim_register(l.pd, unsafe.Pointer(unsafe.SliceData(m.Bytes())), C.size_t(len(m.Bytes())), 0, 0, 0)
	if mr == nil {
		_ = m.Close()
		return nil, fmt.Errorf("register %d bytes for a work of many segments: %w", size, err)
	}
	return &bounceBuffer{m, mr}, nil
}

// scatter copies received bytes to the segments of a work.
func (b *bounceBuffer) scatter(w *via.Work, size int) {
	from := b.memory.Bytes()[:size]
	for _, s := range w.Segments {
		from = from[copy(s.Bytes, from):]
	}
}

// close deregisters and unmaps the memory.
func (b *bounceBuffer) close() {
	_ = C.ibv_dereg_mr(b.mr) // fails if the device was removed
	_ = b.memory.Close()
}
