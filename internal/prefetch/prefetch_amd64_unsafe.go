//go:build amd64

package prefetch

import "unsafe"

// Line starts to load the cache line of p into all cache levels and returns at
// once.
//
// Safety: the instruction is a hint; it changes no memory, and does not fault
// wherever p points.
//
//go:noescape
func Line(p unsafe.Pointer)
