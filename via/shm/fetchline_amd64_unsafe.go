//go:build amd64

package shm

import "unsafe"

// fetchLine begins to bring a cache line to the processor. Nothing waits for it.
//
// Safety: the instruction is a hint; it changes no memory, and does not fault
// wherever p points.
//
//go:noescape
func fetchLine(p unsafe.Pointer)
