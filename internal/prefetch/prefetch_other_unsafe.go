//go:build !amd64

package prefetch

import "unsafe"

// Line does nothing: this architecture has no prefetch here.
//
// Safety: p is not used.
func Line(unsafe.Pointer) {}
